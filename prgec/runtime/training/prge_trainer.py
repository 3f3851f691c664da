"""Trains by estimated gradients: feeds each step's g into the next call, and flushes the last one.

Letters: q queries, B examples a step, N = 2qB rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from prgec.core.contract.arrays import Float64Array, FloatArray
from prgec.core.contract.calls import Batch, StepInputs
from prgec.core.contract.engine import TrainableProgram
from prgec.core.contract.sums import ordered_mean
from prgec.runtime.training.estimators import Estimator
from prgec.runtime.training.limits import Limits, coefficients, intervention
from prgec.runtime.training.privacy import Privacy
from prgec.runtime.training.step import StepResult


@dataclass(frozen=True)
class EstimatedStep(StepResult):
    """The measurements of a step that estimates the gradient from losses.

    Attributes:
        losses: Mean over the B examples for each query and sign: f64[q, 2].
        g: Coefficients of its update, within the limits: f32[q].
        eps: Perturbation scale it measured with.
        limited: Effect of the limits, `skipped` or `clipped`; None for none.
    """

    losses: Float64Array
    g: FloatArray
    eps: float
    limited: str | None = None

    @property
    def is_flat(self) -> bool:
        """Whether both signs of every query have the same loss."""
        return bool((self.losses[:, 0] == self.losses[:, 1]).all())

    def metrics(self) -> dict[str, Any]:
        """Return the fields of its line of metrics."""
        limited = {"limited": self.limited} if self.limited else {}
        return {**super().metrics(), "g": self.g.tolist(), **limited}


class Recorded(Protocol):
    """The result of a step that was done."""

    @property
    def step(self) -> int:
        """Its number, from 1."""

    @property
    def lr(self) -> float:
        """Its learning rate."""

    @property
    def losses(self) -> Float64Array:
        """Mean over the B examples for each query and sign: f64[q, 2]."""

    @property
    def g(self) -> FloatArray:
        """Coefficients of its update, as applied: f32[q]."""


@dataclass(frozen=True, kw_only=True)
class Estimation:
    """The way from measured losses to an update.

    Attributes:
        estimator: Turns losses into g; it remembers the steps of one run.
        eps: Perturbation scale, > 0.
        seed: Key of the noise.
        limits: Treatment of steps that measure too much, or nothing.
        privacy: How single rows are hidden; None to use losses as they are.
    """

    estimator: Estimator
    eps: float
    seed: int
    limits: Limits = Limits()
    privacy: Privacy | None = None


class PrgeTrainer:
    """Drives a program through training steps.

    The update of a step happens inside the next call, so between calls one (g, lr) is pending; `flush` applies it.

    Args:
        program: The program to train.
        estimation: The way from its losses to an update.
        step: Number of steps already done.
    """

    def __init__(self, program: TrainableProgram, estimation: Estimation, *, step: int = 0) -> None:
        self._program = program
        self._estimator, self._limits, self._privacy = estimation.estimator, estimation.limits, estimation.privacy
        self._eps, self._seed = estimation.eps, estimation.seed
        self._zeros: FloatArray = np.zeros(program.manifest.q, dtype=np.float32)
        self._pending = self._zeros
        self._pending_lr = 0.0
        self.step_number = step

    @property
    def is_flushed(self) -> bool:
        """Whether the program's state includes every step done so far."""
        return not self._pending.any()

    def take_up(self, records: Sequence[Recorded]) -> list[EstimatedStep]:
        """Continue after steps that were done before, whose updates the program's state includes.

        Args:
            records: All steps so far; what they measured is what the estimator may remember.

        Returns:
            Their results.
        """
        self.step_number = len(records)
        return [self._result(each.step, each.losses, self._measure(each.losses), each.g, each.lr) for each in records]

    def step(self, batch: Batch, lr: float) -> EstimatedStep:
        """Run one forward call: applies the step before, measures this one.

        Args:
            batch: B examples replicated for every query and sign.
            lr: Learning rate of this step's own update.

        Raises:
            NumericsError: If a loss or coefficient is not finite, and the limits do not say to skip it. This step's
                update is then never applied: the state is that of the step before, complete.
        """
        manifest, number = self._program.manifest, self.step_number + 1
        loss_N = self._program.forward(batch, self._inputs(number))
        self._pending, self._pending_lr = self._zeros, 0.0
        with np.errstate(invalid="ignore"):  # what is not finite is for the limits to judge
            losses = self._losses(loss_N.astype(np.float64).reshape(manifest.q, 2, manifest.batch_size), batch)
        return self._accept(number, losses, lr)

    def _accept(self, number: int, losses: Float64Array, lr: float) -> EstimatedStep:
        """Let a step's losses f64[q, 2] decide its update, which is pending then."""
        self.step_number = number
        measured_q = self._measure(losses)
        g_q = self._limits.apply(measured_q, losses, number)
        self._pending, self._pending_lr = g_q, lr
        return self._result(number, losses, measured_q, g_q, lr)

    def flush(self) -> None:
        """Apply the pending update, so that the state is the trained one; the next step passes g = 0."""
        if self.is_flushed:
            return
        self._program.apply(self._inputs(self.step_number + 1))
        self._pending, self._pending_lr = self._zeros, 0.0

    def _inputs(self, number: int) -> StepInputs:
        return StepInputs(g_q=self._pending, lr=self._pending_lr, eps=self._eps, seed=self._seed, step=number)

    def _losses(self, losses: Float64Array, batch: Batch) -> Float64Array:
        """Return the loss of each query and sign, f64[q, 2], of the losses of their rows, f64[q, 2, B]."""
        if self._privacy is not None:
            return self._privacy.hide(losses, batch.indices[: losses.shape[-1]], self._eps)
        result: Float64Array = ordered_mean(losses)
        return result

    def _measure(self, losses: Float64Array) -> FloatArray:
        return coefficients(losses, self._eps, self._estimator)

    def _result(
        self, step: int, losses: Float64Array, measured_q: FloatArray, g_q: FloatArray, lr: float
    ) -> EstimatedStep:
        with np.errstate(invalid="ignore"):
            loss = float(ordered_mean(losses.reshape(-1)))
        return EstimatedStep(step, loss, lr, losses, g_q, self._eps, intervention(measured_q, g_q))
