"""The live display of a run: a bar with loss, lr, speed and time left, or plain lines where nobody watches."""

from __future__ import annotations

import math
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from prgec.cli.render import stderr_console
from prgec.core.contract.engine import GeneratingProgram
from prgec.core.data.dataset import Dataset
from prgec.runtime.runs.probe import Probe
from prgec.runtime.runs.result import Listener
from prgec.runtime.training.evaluate import Evaluation
from prgec.runtime.training.privacy_budget import PrivacyBudget
from prgec.runtime.training.step import StepResult

# Weight of the newest loss in the displayed running mean.
_SMOOTHING = 0.05
_NUM_PLAIN_LINES = 10


class RunDisplay(Listener):
    """Shows a run on stderr; use as a context manager.

    Args:
        steps: Number of training steps.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._console = stderr_console()
        self._progress = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._train: TaskID | None = None
        self._eval: TaskID | None = None
        self._mean_loss = math.nan

    def __enter__(self) -> RunDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def on_data(self, dataset: Dataset) -> None:
        """Say which task the fields were taken for."""
        self._say(dataset.describe())

    def on_ready(self, program: GeneratingProgram, num_examples: int, num_eval_examples: int) -> None:
        """Say what is about to be trained."""
        m = program.manifest
        evaluated = f", {num_eval_examples} to evaluate" if num_eval_examples else ""
        self._say(
            f"{m.model} on {m.backend}: {m.step_text} T={m.seq_len} rank={m.rank} state={m.state}, "
            f"{len(m.sites)} sites, {num_examples} examples{evaluated}"
        )

    def on_privacy(self, budget: PrivacyBudget) -> None:
        """Say how single rows are hidden."""
        self._say(budget.describe())

    def on_resume(self, step: int) -> None:
        """Say where the run goes on."""
        self._say(f"resuming after step {step}")

    def on_step(self, result: StepResult) -> None:
        """Move the bar; without a terminal, print about ten lines over the run."""
        # The first step of a resumed run has no mean to add to, nor has a step after a loss that is not finite.
        has_mean = math.isfinite(self._mean_loss)
        self._mean_loss = self._mean_loss + _SMOOTHING * (result.loss - self._mean_loss) if has_mean else result.loss
        note = f"loss {self._mean_loss:.4f}  lr {result.lr:.2e}"
        if (reward := result.metrics().get("reward")) is not None:
            note = f"reward {reward:.3f}  {note}"
        if self._train is None:
            self._train = self._progress.add_task("train", total=self._steps, note="", rate="")
        speed = self._progress.tasks[self._progress.task_ids.index(self._train)].speed
        rate = f"{speed:.1f} steps/s" if speed else ""
        self._progress.update(self._train, completed=result.step, note=note, rate=rate)
        if self._progress.disable and (result.step % max(1, self._steps // _NUM_PLAIN_LINES) == 0 or result.step == 1):
            self._say(f"step {result.step}/{self._steps}  {note}")

    def on_probe(self, probe: Probe) -> None:
        """Say what one learning rate did."""
        self._say(f"lr {probe.lr:.2g}: " + ("diverged" if probe.loss is None else f"loss {probe.loss:.4f}"))

    def on_eval_batch(self, rows_done: int, num_rows: int) -> None:
        """Move the evaluation's own bar."""
        if self._eval is None:
            self._eval = self._progress.add_task("evaluate", total=num_rows, note="", rate="")
        self._progress.update(self._eval, completed=rows_done)

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Replace the evaluation's bar by one line."""
        if self._eval is not None:
            self._progress.remove_task(self._eval)
            self._eval = None
        accuracy = f"  accuracy {evaluation.accuracy:.1%}" if evaluation.accuracy is not None else ""
        accuracy += f"  F1 {evaluation.f1:.1%}" if evaluation.f1 is not None else ""
        scored = f"loss {evaluation.loss:.4f}" if evaluation.reward is None else f"reward {evaluation.reward:.4f}"
        self._say(f"step {step}: evaluation {scored}{accuracy}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
