"""The input of objectives: log-likelihoods of answers under a program, now and before the first step.

Letters: n rows.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prgec.core.contract.arrays import Float64Array, FloatArray, IntArray
from prgec.core.contract.engine import GeneratingProgram
from prgec.core.contract.listener import CallListener, ignore
from prgec.core.data.feedback_set import FeedbackSet
from prgec.core.data.row import Row
from prgec.errors import NumericsError
from prgec.runtime.training.evaluate import Evaluation, row_losses, without_adapter
from prgec.runtime.training.objectives import Answers, Judged, Numbers, Objective


@dataclass(frozen=True)
class Reference:
    """Losses of rows under a program that has not learnt: f32[n], empty where the objective reads none.

    Attributes:
        rows: Losses of the answers.
        others: Losses of the prompts with answers to others.
    """

    rows: FloatArray
    others: FloatArray


@dataclass(frozen=True)
class Feedback:
    """An objective with what it reads of one set of answers.

    Attributes:
        objective: Row of the table.
        numbers: Its numbers, as the user set them.
        answers: The answers.
        reference: Their losses before.
    """

    objective: Objective
    numbers: Numbers
    answers: FeedbackSet
    reference: Reference

    @property
    def crc(self) -> int:
        """A name of the answers and the numbers of the objective."""
        return zlib.crc32(repr(self.numbers).encode(), self.answers.crc)

    def judge(self, indices: IntArray, losses: Float64Array, others: Float64Array) -> Judged:
        """Return the verdict of the objective on some rows.

        Args:
            indices: Which rows, i64[n].
            losses: Their mean losses now, f64[n].
            others: The same of their prompts with other answers; empty where the objective reads none.
        """
        counts = self.num_labels(self.answers.rows, indices)
        reference = -self.reference.rows[indices] * counts if len(self.reference.rows) else np.zeros(len(indices))
        drift = np.zeros(0)
        if self.objective.needs_drift:
            of_others = self.num_labels(self.answers.others, indices)
            drift = (self.reference.others[indices].astype(np.float64) - others) * of_others
        is_good = np.array(self.answers.is_good)[indices]
        return self.objective.judge(Answers(-losses * counts, counts, reference, is_good, drift), self.numbers)

    @staticmethod
    def num_labels(rows: Sequence[Row], indices: IntArray) -> Float64Array:
        """Return how many labels each of some rows has, f64[n]."""
        return np.array([len(rows[index].targets) for index in indices.tolist()], dtype=np.float64)


def measure_reference(
    program: GeneratingProgram, objective: Objective, answers: FeedbackSet, on_batch: CallListener = ignore
) -> Reference:
    """Return losses under the program without its adapter, and leave it as it was.

    Args:
        program: The program; B of every site is set to zero meanwhile.
        objective: The reader of the losses.
        answers: The answers.
        on_batch: Called with (rows done, all rows) after every call; it may raise to end the rest.
    """
    with without_adapter(program):
        of_rows, of_others = (
            row_losses(program, rows, on_batch) if is_read else np.zeros(0)
            for rows, is_read in ((answers.rows, objective.needs_reference), (answers.others, objective.needs_drift))
        )
    return Reference(of_rows.astype(np.float32), of_others.astype(np.float32))


def evaluate_feedback(program: GeneratingProgram, feedback: Feedback, on_batch: CallListener) -> Evaluation:
    """Score answers by an objective: its loss, and the share of answers it has on the right side.

    Raises:
        NumericsError: If the loss is not finite.
    """
    start = time.monotonic()
    answers = feedback.answers
    losses = row_losses(program, answers.rows, on_batch)
    others = row_losses(program, answers.others, on_batch) if feedback.objective.needs_drift else np.zeros(0)
    judged = feedback.judge(np.arange(len(losses)), losses, others)
    if not np.isfinite(judged.loss):
        raise NumericsError("the evaluation loss is not finite", hint="the state has diverged: lower --lr")
    num_calls = -(-(len(losses) + len(others)) // program.manifest.num_distinct_rows)
    return Evaluation(
        loss=judged.loss,
        accuracy=judged.accuracy,
        num_examples=len(answers.answers),
        num_calls=num_calls,
        seconds=time.monotonic() - start,
    )
