"""Training steps of programs that compute their own gradients: one call a step, or several, and nothing pending.

Letters: B examples a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prgec.core.contract.arrays import Float64Array, FloatArray
from prgec.core.contract.calls import Batch, Call
from prgec.core.contract.engine import TrainableProgram
from prgec.core.contract.sums import ordered_mean
from prgec.errors import NumericsError
from prgec.runtime.training.limits import SKIP, Limits
from prgec.runtime.training.prge_trainer import Recorded
from prgec.runtime.training.step import StepResult


@dataclass(frozen=True)
class GradientStep(StepResult):
    """The measurements and effect of one step.

    Attributes:
        norm: Length of the gradient over all sites; NaN where it was not finite and the step changed nothing.
    """

    norm: float

    def recorded(self) -> tuple[Float64Array, FloatArray]:
        """Return the numbers that a journal keeps of it, f64[p, 2] and f32[p]: the loss twice, and the norm; p = 1."""
        return np.full((1, 2), self.loss), np.array([self.norm], dtype=np.float32)

    def metrics(self) -> dict[str, Any]:
        """Return the fields of its line of metrics."""
        if not math.isfinite(self.norm):
            return {**super().metrics(), "grad_norm": None, "limited": "skipped"}
        return {**super().metrics(), "grad_norm": self.norm}


class GradientTrainer:
    """Drives a program that computes gradients through training steps.

    Args:
        program: The program to train.
        limits: Treatment of steps whose loss or gradient is not finite; the program itself never applies one.
    """

    def __init__(self, program: TrainableProgram, limits: Limits | None = None) -> None:
        self._program = program
        self._limits = limits or Limits()
        # Losses of the calls of a step whose last one has not come yet.
        self._gathered: list[FloatArray] = []
        self.step_number = 0

    def take_up(self, records: Sequence[Recorded]) -> list[GradientStep]:
        """Continue after steps that were done before, which the program's state includes; return their results."""
        self.step_number = len(records)
        return [self._recorded(each) for each in records]

    def gather(self, batch: Batch) -> None:
        """Run a call of the next step that is not its last: it measures and differentiates, and updates nothing.

        Args:
            batch: B different examples.
        """
        gathered, self._gathered = self._gathered, []  # a call that fails ends its step
        call = Call(len(gathered), is_last=False)
        loss_B, _ = self._train(batch, 0.0, call)
        self._gathered = [*gathered, loss_B]

    def step(self, batch: Batch, lr: float) -> GradientStep:
        """Run the last call of a step, which is the only one unless some were gathered: it also updates.

        Args:
            batch: B different examples.
            lr: Learning rate of the update.

        Raises:
            NumericsError: If the loss or the gradient is not finite, and the limits do not say to skip it. The state
                is then that of the step before.
        """
        gathered, self._gathered = self._gathered, []
        call = Call(len(gathered), is_last=True)
        loss_B, factors = self._train(batch, lr, call)
        self.step_number += 1
        # Canonicalise NaN: NaNs have many bit patterns, and equal runs must write equal bytes.
        norm = float(factors[1]) if np.isfinite(factors[1]) else math.nan
        with np.errstate(invalid="ignore"):  # what is not finite is judged below
            result = self._result(np.concatenate([*gathered, loss_B]), lr, norm)
        if not (math.isfinite(result.loss) and math.isfinite(result.norm)) and self._limits.not_finite != SKIP:
            raise NumericsError(
                f"the gradient of step {self.step_number} is not finite; training stopped, state kept",
                hint="lower --lr, or go on with --not-finite skip",
            )
        return result

    def flush(self) -> None:
        """Nothing is pending."""

    def _recorded(self, record: Recorded) -> GradientStep:
        """Return the result of a step that a journal has."""
        return GradientStep(record.step, float(record.losses[0, 0]), record.lr, float(record.g[0]))

    def _result(self, losses: FloatArray, lr: float, norm: float) -> GradientStep:
        """Return what the step just taken measured: the losses of all its rows, call by call."""
        return GradientStep(self.step_number, float(ordered_mean(losses.astype(np.float64))), lr, norm)

    def _train(self, batch: Batch, lr: float, call: Call) -> tuple[FloatArray, FloatArray]:
        return self._program.train(batch, lr, call)

    def _train_weighed(
        self, batch: Batch, weights_B: Float64Array, lr: float, call: Call
    ) -> tuple[FloatArray, FloatArray]:
        """Run a call in which every label of a row counts the same."""
        weights_BK = np.repeat(weights_B.astype(np.float32)[:, None], batch.targets_NK.shape[1], axis=1)
        return self._program.train(replace(batch, weights_NK=weights_BK), lr, call)
