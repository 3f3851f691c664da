"""Training steps by rewards: write answers, have them judged, and take the step that makes good ones likelier.

Letters: n = B rows a call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from prgec.core.contract.arrays import Float64Array, FloatArray
from prgec.core.contract.engine import Call, GeneratingProgram
from prgec.core.data.batches import Batch, training_batch
from prgec.runtime.training.advantages import Advantage, weights_of
from prgec.runtime.training.evaluate import is_moved, losses_of, without_adapter
from prgec.runtime.training.gradient_trainer import GradientStep, GradientTrainer
from prgec.runtime.training.limits import Limits
from prgec.runtime.training.prge_trainer import Recorded
from prgec.runtime.training.rollouts import Collected, Rollouts


@dataclass(frozen=True)
class RewardStep(GradientStep):
    """Result of one step; `loss` is that which was differentiated: weighted, and near 0 by itself.

    Attributes:
        nll: Mean over the answers of the mean negative log-likelihood of their tokens: how sure the program was.
        reward: Mean reward.
        spread: Mean over the prompts of the standard deviation of their answers' rewards.
        length: Mean number of tokens of an answer.
        equal: Share of prompts whose answers have one reward: nothing is learnt of them.
        kl: Mean over the answers of log-likelihood now less that before the first step.
    """

    nll: float
    reward: float
    spread: float
    length: float
    equal: float
    kl: float

    @property
    def losses(self) -> Float64Array:
        """Numbers for the journal, f64[3, 2]: loss and nll, reward and spread, length and equal."""
        return np.array([[self.loss, self.nll], [self.reward, self.spread], [self.length, self.equal]])

    @property
    def g(self) -> FloatArray:
        """Further numbers for the journal, f32[3]: the norm, the distance to the start, and nothing."""
        return np.array([self.norm, self.kl, 0.0], dtype=np.float32)

    def metrics(self) -> dict[str, Any]:
        """Return the fields of its line of metrics."""
        names = ("nll", "reward", "spread", "length", "equal", "kl")
        found = {name: getattr(self, name) for name in names}
        return {**super().metrics(), **{name: value for name, value in found.items() if math.isfinite(value)}}


# Records of a reward step in the journal.
RECORDED_QUERIES = 3


class _Measured(NamedTuple):
    """One call of a step."""

    loss: float
    nll: float
    reward: float
    spread: float
    length: float
    equal: float
    kl: float


class RewardTrainer(GradientTrainer):
    """Drives a program with label weights and a cache.

    Args:
        program: The program to train.
        rollouts: Its answers.
        advantage: The objective.
        beta: Cost of a unit of the distance to the start; it is taken from the rewards.
        limits: Treatment of steps whose loss or gradient is not finite.
    """

    def __init__(
        self,
        program: GeneratingProgram,
        rollouts: Rollouts,
        advantage: Advantage,
        *,
        beta: float = 0.0,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(program, limits)
        self._writer, self._rollouts, self._advantage, self._beta = program, rollouts, advantage, beta
        # One for each call of the step under way.
        self._measured: list[_Measured] = []

    def _recorded(self, record: Recorded) -> RewardStep:
        (loss, nll), (reward, spread), (length, equal) = record.losses.tolist()
        norm, kl, _ = record.g.tolist()
        return RewardStep(record.step, loss, record.lr, norm, nll, reward, spread, length, equal, kl)

    def _train(self, batch: Batch, lr: float, call: Call) -> tuple[FloatArray, FloatArray]:
        if call.before == 0:
            self._measured = []
        group = self._rollouts.group
        numbers = (batch.indices[::group] // group).tolist()
        collected = self._rollouts.collect(numbers, self.step_number + 1, call.before)
        drift = drift_of(self._writer, collected)
        weights = label_weights(self._advantage, collected, drift, self._rollouts, self._beta)
        rows = training_batch(collected.rows, np.arange(len(collected.rows)), self._writer.manifest)
        loss_B, factors = self._train_weighed(rows, weights, lr, call)
        self._measured.append(_measure(loss_B.astype(np.float64), weights, collected, drift, group))
        return loss_B, factors

    def _result(self, losses: FloatArray, lr: float, norm: float) -> RewardStep:
        columns = (float(np.mean(column)) for column in zip(*self._measured, strict=True))
        loss, nll, reward, spread, length, equal, kl = columns
        # The journal has f32 for the distance, and a run that goes on reports the same number.
        kl = float(np.float32(kl))
        return RewardStep(self.step_number, loss, lr, norm, nll, reward, spread, length, equal, kl)


def label_weights(
    advantage: Advantage, collected: Collected, drift: Float64Array, rollouts: Rollouts, beta: float
) -> Float64Array:
    """Return what every label of a row counts, f64[n], the distance to the start being a cost."""
    return weights_of(
        advantage,
        collected.rewards - beta * drift,
        collected.num_labels,
        group=rollouts.group,
        max_tokens=rollouts.max_tokens,
    )


def drift_of(program: GeneratingProgram, collected: Collected) -> Float64Array:
    """Return the log-likelihood of each answer less that under the program without its adapter, f64[n].

    The state is as it was afterwards.
    """
    if not is_moved(program):
        return np.zeros(len(collected.rows))
    now = losses_of(program, collected.rows)
    with without_adapter(program):
        before = losses_of(program, collected.rows)
    return (before - now) * collected.num_labels


def _measure(
    losses: Float64Array, weights: Float64Array, collected: Collected, drift: Float64Array, group: int
) -> _Measured:
    rewards_PG = collected.rewards.reshape(-1, group)
    spreads = rewards_PG.std(axis=1, ddof=1)
    return _Measured(
        loss=float((weights * losses).mean()),
        nll=float(losses.mean()),
        reward=float(collected.rewards.mean()),
        spread=float(spreads.mean()),
        length=float(collected.num_labels.mean()),
        equal=float((spreads == 0).mean()),
        kl=float(drift.mean()),
    )
