"""The base of PyTorch baselines as methods of a study: they count their steps, and no update ever waits."""

from __future__ import annotations

from prgec.core.contract.calls import Batch
from prgec.lab.study.eager import EagerProgram
from prgec.runtime.training.step import StepResult


class Baseline:
    """One run of a baseline.

    Args:
        program: The model it trains.
        rows_per_step: Rows of forward passes a step costs.
    """

    def __init__(self, program: EagerProgram, rows_per_step: int) -> None:
        self.program = program
        self.rows_per_step = rows_per_step
        self.held_bytes = 0
        self.step_number = 0

    def step(self, batch: Batch, lr: float) -> StepResult:
        """Train on the first B rows of a batch.

        Raises:
            NumericsError: If a loss is not finite.
        """
        loss = self._train(batch, lr)
        self.step_number += 1
        return StepResult(self.step_number, loss, lr)

    def flush(self) -> None:
        """Nothing is pending."""

    def _train(self, batch: Batch, lr: float) -> float:
        """Move the weights once and return the loss."""
        raise NotImplementedError
