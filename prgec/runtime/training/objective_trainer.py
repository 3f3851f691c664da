"""Training steps by an objective of preferences: measure, weigh, and take the step of the weighted loss.

Letters: B rows a call, K label positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prgec.core.contract.arrays import Float64Array, FloatArray
from prgec.core.contract.calls import Batch, Call
from prgec.core.contract.engine import TrainableProgram
from prgec.core.data.batches import training_batch
from prgec.runtime.training.feedback import Feedback
from prgec.runtime.training.gradient_trainer import GradientStep, GradientTrainer
from prgec.runtime.training.limits import Limits
from prgec.runtime.training.objectives import Judged, row_weights
from prgec.runtime.training.prge_trainer import Recorded


@dataclass(frozen=True)
class ObjectiveStep(GradientStep):
    """Result of one step; `loss` is that of the objective.

    Attributes:
        nll: Mean over the rows of the mean negative log-likelihood of their labels.
        margin: How much more good answers are rewarded than bad ones; NaN where one kind was missing.
        accuracy: Share of answers on the right side.
        kl: KTO's estimate of the distance to the reference; NaN for other objectives.
    """

    nll: float
    margin: float
    accuracy: float
    kl: float

    def recorded(self) -> tuple[Float64Array, FloatArray]:
        """Return both losses, then margin and accuracy, f64[2, 2], and the norm with KTO's distance, f32[2]."""
        measured = np.array([[self.loss, self.nll], [self.margin, self.accuracy]])
        return measured, np.array([self.norm, self.kl], dtype=np.float32)

    def metrics(self) -> dict[str, Any]:
        """Return the fields of its line of metrics."""
        found = {"nll": self.nll, "margin": self.margin, "accuracy": self.accuracy, "kl": self.kl}
        return {**super().metrics(), **{name: value for name, value in found.items() if math.isfinite(value)}}


class ObjectiveTrainer(GradientTrainer):
    """Drives a program with label weights; each call is an evaluation of its rows, and a step.

    Args:
        program: The program to train.
        feedback: The objective and the answers.
        limits: Treatment of steps whose loss or gradient is not finite.
    """

    def __init__(self, program: TrainableProgram, feedback: Feedback, limits: Limits | None = None) -> None:
        super().__init__(program, limits)
        self._feedback = feedback
        # One for each call of the step under way.
        self._judged: list[Judged] = []
        self._nll: list[float] = []

    def _recorded(self, record: Recorded) -> ObjectiveStep:
        (loss, nll), (margin, accuracy) = record.losses.tolist()
        norm, kl = record.g.tolist()
        return ObjectiveStep(record.step, loss, record.lr, norm, nll, margin, accuracy, kl)

    def _train(self, batch: Batch, lr: float, call: Call) -> tuple[FloatArray, FloatArray]:
        if call.before == 0:
            self._judged, self._nll = [], []
        judged, counts = self._judge(batch)
        self._judged.append(judged)
        loss_B, factors = self._train_weighed(batch, row_weights(judged, counts), lr, call)
        self._nll.append(float(loss_B.astype(np.float64).mean()))
        return loss_B, factors

    def _judge(self, batch: Batch) -> tuple[Judged, Float64Array]:
        feedback, indices = self._feedback, batch.indices
        others = np.zeros(0)
        if feedback.objective.needs_drift:
            others = self._losses(training_batch(feedback.answers.others, indices, self._program.manifest))
        judged = feedback.judge(indices, self._losses(batch), others)
        return judged, feedback.num_labels(feedback.answers.rows, indices)

    def _losses(self, batch: Batch) -> Float64Array:
        return self._program.evaluate(batch).astype(np.float64)

    def _result(self, losses: FloatArray, lr: float, norm: float) -> ObjectiveStep:
        calls = self._judged
        loss, nll = float(np.mean([each.loss for each in calls])), float(np.mean(self._nll))
        margin, accuracy, kl = (_mean([getattr(each, name) for each in calls]) for name in ("margin", "accuracy", "kl"))
        # The journal has f32 for the distance, and a run that goes on reports the same number.
        return ObjectiveStep(self.step_number, loss, lr, norm, nll, margin, accuracy, float(np.float32(kl)))


def _mean(values: Sequence[float]) -> float:
    """The mean of the calls that have such a number; NaN where none has."""
    found = [value for value in values if math.isfinite(value)]
    return float(np.mean(found)) if found else math.nan
