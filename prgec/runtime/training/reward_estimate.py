"""Training steps by rewards where losses are measured: each copy's loss is how likely it makes the good answers.

Letters: q queries, B rows a step.
"""

from __future__ import annotations

import numpy as np

from prgec.core.contract.arrays import Float64Array
from prgec.core.contract.calls import Batch
from prgec.core.contract.engine import GeneratingProgram
from prgec.core.contract.sums import ordered_mean
from prgec.core.data.batches import training_batch
from prgec.runtime.training.advantages import Advantage
from prgec.runtime.training.prge_trainer import EstimatedStep, Estimation, PrgeTrainer
from prgec.runtime.training.reward_trainer import from_start, label_weights
from prgec.runtime.training.rollouts import Rollouts


class RewardEstimator(PrgeTrainer):
    """Drives a program that measures losses, by answers of its unperturbed state.

    Args:
        program: The program to train.
        estimation: The way from its losses to an update.
        rollouts: The program's answers.
        advantage: The objective.
        beta: Cost of a unit of the distance to the start; it is taken from the rewards.
    """

    def __init__(
        self,
        program: GeneratingProgram,
        estimation: Estimation,
        rollouts: Rollouts,
        advantage: Advantage,
        *,
        beta: float,
    ) -> None:
        super().__init__(program, estimation)
        self._writer, self._rollouts, self._advantage, self._beta = program, rollouts, advantage, beta
        self._weights: Float64Array = np.zeros(0)

    def step(self, batch: Batch, lr: float) -> EstimatedStep:
        """Write answers, then run one forward call on them.

        Raises:
            NumericsError: If an answer has no reward and the run stops for that, or as in `PrgeTrainer.step`.
        """
        self.flush()
        m, group = self._writer.manifest, self._rollouts.group
        numbers = (batch.indices[: m.batch_size : group] // group).tolist()
        collected = self._rollouts.collect(numbers, self.step_number + 1)
        drift = from_start(self._writer, collected)[1] if self._beta else np.zeros(len(collected.rows))
        self._weights = label_weights(self._advantage, collected, drift, self._rollouts, self._beta)
        return super().step(training_batch(collected.rows, np.arange(len(collected.rows)), m), lr)

    def _losses(self, losses: Float64Array, batch: Batch) -> Float64Array:
        result: Float64Array = ordered_mean(losses * self._weights)
        return result
