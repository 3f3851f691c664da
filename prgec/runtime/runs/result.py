"""The progress of a run, for a listener, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.core.contract.engine import GeneratingProgram
from prgec.core.data.dataset import Dataset
from prgec.runtime.training.evaluate import Evaluation
from prgec.runtime.training.privacy_budget import PrivacyBudget
from prgec.runtime.training.step import StepResult


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run.

    Attributes:
        run: The run folder.
        steps: Steps done.
        loss: Mean training loss over the last steps (at most 50).
        before: Evaluation before training; None without evaluation data.
        after: Evaluation after training; None without evaluation data or when interrupted.
        seconds: Wall time of everything.
        steps_per_second: Speed of training alone.
        state_sha256: Hash of the trained state.
        interrupted: Whether the user stopped it early.
        best_step: Steps done when the state that was kept scored best; None without early stopping.
    """

    run: Path
    steps: int
    loss: float
    before: Evaluation | None
    after: Evaluation | None
    seconds: float
    steps_per_second: float
    state_sha256: str
    interrupted: bool
    best_step: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the document `--json` prints; `accuracy` is the one after training."""
        before, after = self.before, self.after
        return {
            "run": str(self.run),
            "steps": self.steps,
            "loss": self.loss,
            "accuracy": after.accuracy if after else None,
            "accuracy_before": before.accuracy if before else None,
            "eval_loss": after.loss if after else None,
            "eval_loss_before": before.loss if before else None,
            "seconds": round(self.seconds, 3),
            "steps_per_second": round(self.steps_per_second, 3),
            "state_sha256": self.state_sha256,
            "interrupted": self.interrupted,
            "f1": after.f1 if after else None,
            "f1_before": before.f1 if before else None,
            "exact_match": after.exact_match if after else None,
            "best_step": self.best_step,
        }


class Listener:
    """Observes a run's progress; the base class ignores all of it."""

    def on_data(self, dataset: Dataset) -> None:
        """Observe that a data file was read, and under which task."""

    def on_ready(self, program: GeneratingProgram, num_examples: int, num_eval_examples: int) -> None:
        """Observe that the program is open and the data are encoded."""

    def on_privacy(self, budget: PrivacyBudget) -> None:
        """Observe how a run hides single rows."""

    def on_resume(self, step: int) -> None:
        """Observe that an earlier run continues after `step`."""

    def on_step(self, result: StepResult) -> None:
        """Observe one training step."""

    def on_eval_batch(self, rows_done: int, num_rows: int) -> None:
        """Observe one forward call of an evaluation."""

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Observe a finished evaluation."""
