"""Training steps by rewards: write answers, have them judged, and take the step that makes good ones likelier.

Letters: n = B rows a call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from prgec.core.contract.arrays import Float64Array, FloatArray
from prgec.core.contract.calls import Batch, Call
from prgec.core.contract.engine import GeneratingProgram
from prgec.core.data.batches import training_batch
from prgec.runtime.training.advantages import Advantage, weights_of, within_ratio
from prgec.runtime.training.evaluate import is_moved, row_losses, without_adapter
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
        clipped: Share of answers that count no more in a later step on them.
    """

    nll: float
    reward: float
    spread: float
    length: float
    equal: float
    kl: float
    clipped: float

    def recorded(self) -> tuple[Float64Array, FloatArray]:
        """Return loss and nll, reward and spread, length and equal, f64[3, 2], and norm, kl and clipped, f32[3]."""
        measured = np.array([[self.loss, self.nll], [self.reward, self.spread], [self.length, self.equal]])
        return measured, np.array([self.norm, self.kl, self.clipped], dtype=np.float32)

    def metrics(self) -> dict[str, Any]:
        """Return the fields of its line of metrics."""
        names = ("nll", "reward", "spread", "length", "equal", "kl")
        found = {name: getattr(self, name) for name in names} | ({"clipped": self.clipped} if self.clipped else {})
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
    clipped: float


class _Held(NamedTuple):
    """The answers of a call, for all steps on them.

    Attributes:
        collected: The answers.
        start: Their mean negative log-likelihoods without the adapter, f64[n]; None where that changes nothing yet.
        drift: Distance to the start when they were written, f64[n].
        weights: Weights of their labels in the first step, f64[n].
    """

    collected: Collected
    start: Float64Array | None
    drift: Float64Array
    weights: Float64Array


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
        # By call: answers of the steps under way.
        self._held: dict[int, _Held] = {}

    def _recorded(self, record: Recorded) -> RewardStep:
        (loss, nll), (reward, spread), (length, equal) = record.losses.tolist()
        norm, kl, clipped = record.g.tolist()
        return RewardStep(record.step, loss, record.lr, norm, nll, reward, spread, length, equal, kl, clipped)

    def _train(self, batch: Batch, lr: float, call: Call) -> tuple[FloatArray, FloatArray]:
        if call.before == 0:
            self._measured = []
        iteration = self.step_number % self._rollouts.iterations
        if iteration == 0:
            group = self._rollouts.group
            numbers = (batch.indices[::group] // group).tolist()
            held = self._hold(self._rollouts.collect(numbers, self.step_number + 1, call.before))
            drift, weights, is_out = held.drift, held.weights, np.zeros(len(held.weights))
        else:
            held = self._held.get(call.before) or self._recall(self.step_number + 1 - iteration, call.before)
            drift, weights, is_out = self._again(held)
        self._held[call.before] = held
        collected = held.collected
        rows = training_batch(collected.rows, np.arange(len(collected.rows)), self._writer.manifest)
        loss_B, factors = self._train_weighed(rows, weights, lr, call)
        self._measured.append(self._measure(loss_B.astype(np.float64), weights, collected, drift, is_out))
        return loss_B, factors

    def _hold(self, collected: Collected) -> _Held:
        """Return answers with what they count in the first step on them."""
        start, drift = from_start(self._writer, collected)
        weights = label_weights(self._advantage, collected, drift, self._rollouts, self._beta)
        return _Held(collected, start, drift, weights)

    def _recall(self, step: int, call: int) -> _Held:
        """Return the answers of a step that was taken before the run was interrupted."""
        assert self._rollouts.recall is not None, "only a run with a folder goes on"
        return self._hold(self._rollouts.recall(step, call))

    def _again(self, held: _Held) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return drift and weights of a later step on the same answers, f64[n], and which count no more."""
        collected, advantage = held.collected, self._advantage
        assert collected.losses is not None and held.start is not None, "there are several steps on these answers"
        now = row_losses(self._writer, collected.rows)
        log_ratios = (collected.losses - now) * (collected.num_labels if advantage.is_of_whole else 1.0)
        weights, is_out = within_ratio(held.weights, log_ratios, self._rollouts.clip)
        return (held.start - now) * collected.num_labels, weights, is_out

    def _result(self, losses: FloatArray, lr: float, norm: float) -> RewardStep:
        columns = (float(np.mean(column)) for column in zip(*self._measured, strict=True))
        loss, nll, reward, spread, length, equal, kl, clipped = columns
        # The journal has f32 for these two, and a run that goes on reports the same numbers.
        kl, clipped = float(np.float32(kl)), float(np.float32(clipped))
        return RewardStep(self.step_number, loss, lr, norm, nll, reward, spread, length, equal, kl, clipped)

    def _measure(
        self,
        losses: Float64Array,
        weights: Float64Array,
        collected: Collected,
        drift: Float64Array,
        is_out: Float64Array,
    ) -> _Measured:
        rewards_PG = collected.rewards.reshape(-1, self._rollouts.group)
        spreads = rewards_PG.std(axis=1, ddof=1)
        return _Measured(
            loss=float((weights * losses).mean()),
            nll=float(losses.mean()),
            reward=float(collected.rewards.mean()),
            spread=float(spreads.mean()),
            length=float(collected.num_labels.mean()),
            equal=float((spreads == 0).mean()),
            kl=float(drift.mean()),
            clipped=float(is_out.mean()),
        )


def from_start(program: GeneratingProgram, collected: Collected) -> tuple[Float64Array | None, Float64Array]:
    """Return how far answers were from the program without its adapter when they were written; the state stays.

    Returns:
        Their mean negative log-likelihoods without it, f64[n], None where it changes nothing yet; and the
        log-likelihood of each less that without it, f64[n].
    """
    written = collected.losses
    if written is None:
        if not is_moved(program):
            return None, np.zeros(len(collected.rows))
        written = row_losses(program, collected.rows)
    with without_adapter(program):
        start = row_losses(program, collected.rows)
    return start, (start - written) * collected.num_labels


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
