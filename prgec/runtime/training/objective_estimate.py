"""Training steps by an objective of preferences where losses are measured: every copy is judged by its own losses.

Letters: q queries, B examples a step.
"""

from __future__ import annotations

import numpy as np

from prgec.core.contract.arrays import Float64Array
from prgec.core.contract.calls import Batch
from prgec.core.contract.engine import GeneratingProgram
from prgec.runtime.training.evaluate import row_losses
from prgec.runtime.training.feedback import Feedback
from prgec.runtime.training.prge_trainer import EstimatedStep, Estimation, PrgeTrainer


class ObjectiveEstimator(PrgeTrainer):
    """Drives a program that measures losses; the estimator sees those of the objective.

    Args:
        program: The program to train.
        estimation: The way from its losses to an update.
        feedback: The objective and the answers.
    """

    def __init__(self, program: GeneratingProgram, estimation: Estimation, feedback: Feedback) -> None:
        super().__init__(program, estimation)
        self._scored, self._feedback = program, feedback
        self._others: Float64Array = np.zeros(0)

    def step(self, batch: Batch, lr: float) -> EstimatedStep:
        """Run one forward call, after an evaluation where the objective compares with answers to other prompts.

        Raises:
            NumericsError: If a loss or coefficient is not finite, as in `PrgeTrainer.step`.
        """
        if self._feedback.objective.needs_drift:
            # It is measured in the middle, so nothing may be pending.
            self.flush()
            others = [self._feedback.answers.others[index] for index in self._rows(batch)]
            self._others = row_losses(self._scored, others)
        return super().step(batch, lr)

    def _losses(self, losses: Float64Array, batch: Batch) -> Float64Array:
        rows = np.array(self._rows(batch))
        return np.array([[self._feedback.judge(rows, copy, self._others).loss for copy in query] for query in losses])

    def _rows(self, batch: Batch) -> list[int]:
        """The B different rows of a call."""
        found: list[int] = batch.indices[: self._scored.manifest.batch_size].tolist()
        return found
