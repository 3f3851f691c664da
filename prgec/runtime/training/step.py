"""One training step of any kind of program: its result and its driver.

The loop (`training.loop`) and a run's log know these only. Other needs of one kind of step, such as coefficients
that wait for the next call, is known to its trainer alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from prgec.core.contract.calls import Batch

RecordT = TypeVar("RecordT", contravariant=True)


@dataclass(frozen=True)
class StepResult:
    """The measurements of one step.

    Attributes:
        step: Number of the step, counted from 1.
        loss: Mean over all rows; not finite where a loss was not and the step was skipped.
        lr: Learning rate of its update.
    """

    step: int
    loss: float
    lr: float

    @property
    def is_flat(self) -> bool:
        """Whether it compared losses, and found none that differ: there is nothing to learn from."""
        return False

    def metrics(self) -> dict[str, Any]:
        """Return the fields of its line of metrics; a kind of step adds its own."""
        # JSON has no numbers that are not finite.
        return {"step": self.step, "loss": self.loss if math.isfinite(self.loss) else None, "lr": self.lr}


class Steps(Protocol):
    """A taker of training steps.

    Attributes:
        step_number: Number of the last step taken, 0 before the first.
    """

    step_number: int

    def step(self, batch: Batch, lr: float) -> StepResult:
        """Take the next step.

        Args:
            batch: Its examples, as the program takes them.
            lr: Its learning rate.

        Raises:
            NumericsError: If it gives no number to go on with; the state is then that of the step before.
        """

    def flush(self) -> None:
        """Bring every step taken into the program's state."""


class StepTrainer(Steps, Protocol[RecordT]):
    """A taker of a run's steps; the run can be killed and resumed from records of its steps."""

    def take_up(self, records: Sequence[RecordT]) -> Sequence[StepResult]:
        """Continue after all steps so far, which the program's state includes; return their results."""
