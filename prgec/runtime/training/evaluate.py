"""Loss and accuracy of a program's present state, N different rows a call.

Letters: q queries, B examples a step, N = 2qB rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from prgec.core.contract.arrays import Float64Array
from prgec.core.contract.engine import GeneratingProgram
from prgec.core.contract.listener import CallListener, ignore
from prgec.core.contract.sums import ordered_mean
from prgec.core.data.answers import exact_match, token_f1
from prgec.core.data.batches import evaluation_batches
from prgec.core.data.encode import Row
from prgec.core.data.eval_set import EvalSet
from prgec.core.data.rouge import Rouge, rouge
from prgec.core.data.rows_file import RowSet
from prgec.core.data.task import ROUGE, Example
from prgec.errors import NumericsError
from prgec.runtime.training.generate import LINE_END, generate

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """The score of a program on a data set.

    Attributes:
        loss: Mean over examples of the right completion's mean negative log-likelihood.
        accuracy: Share of examples whose right completion has the lowest of the candidates' losses; None when the
            task is open-ended.
        num_examples: Examples evaluated.
        num_calls: Forward calls it took.
        seconds: Wall time.
        f1: Mean token F1 of generated answers, where the task compares text and the program generates.
        exact_match: Share of generated answers that equal a reference.
        rouge: The same by ROUGE, where the task is measured by it.
        answers: The program's choice or text for each example; empty for open-ended tasks.
        reward: Mean reward of the most likely answers, in a run by rewards; `loss` is minus that.
        is_recorded: Whether it was read from a journal, which stores only loss and accuracy.
    """

    loss: float
    accuracy: float | None
    num_examples: int
    num_calls: int
    seconds: float
    f1: float | None = None
    exact_match: float | None = None
    answers: tuple[str, ...] = ()
    rouge: Rouge | None = None
    reward: float | None = None
    is_recorded: bool = False

    @property
    def score(self) -> float:
        """The goal of early stopping: accuracy, F1 or ROUGE-1 where there is one, else the negative loss."""
        metric = self.accuracy if self.f1 is None else self.f1
        metric = metric if self.rouge is None else self.rouge.rouge1
        return -self.loss if metric is None else metric


def evaluate(program: GeneratingProgram, eval_set: RowSet, on_batch: CallListener = ignore) -> Evaluation:
    """Score the program's present state. Flush pending updates first: they are not part of the state.

    Args:
        program: The program.
        eval_set: Encoded examples.
        on_batch: Called with (rows done, all rows) after every call, and again from 0 while answers are written; it
            may raise to end the rest.

    Raises:
        NumericsError: If the mean loss is not finite.
    """
    start = time.monotonic()
    losses = row_losses(program, eval_set.rows, on_batch).reshape(-1, eval_set.num_candidates)
    answers = np.array(eval_set.answers)
    loss = float(ordered_mean(losses[np.arange(len(answers)), answers]))
    if not np.isfinite(loss):
        raise NumericsError("the evaluation loss is not finite", hint="the state has diverged: lower --lr")
    num_calls = -(-len(eval_set.rows) // program.manifest.num_distinct_rows)
    best = losses.argmin(axis=1)
    is_choice = eval_set.num_candidates > 1
    accuracy = float((best == answers).mean()) if is_choice else None
    f1 = matched = summed = None
    chosen: list[str] = []
    if isinstance(eval_set, EvalSet) and is_choice:
        chosen = [choices[i] for choices, i in zip(eval_set.choices, best.tolist(), strict=True)]
    if isinstance(eval_set, EvalSet) and eval_set.questions:
        generated = generate(
            program, eval_set.questions, max_tokens=program.manifest.num_labels, stop=LINE_END, on_call=on_batch
        )
        chosen = generated
        if eval_set.metric == ROUGE:
            summed = rouge(generated, [example.references for example in eval_set.examples])
        else:
            f1, matched = _compare(eval_set.examples, generated)
    seconds = time.monotonic() - start
    return Evaluation(
        loss=loss,
        accuracy=accuracy,
        num_examples=len(answers),
        num_calls=num_calls,
        seconds=seconds,
        f1=f1,
        exact_match=matched,
        answers=tuple(chosen),
        rouge=summed,
    )


def _compare(examples: Sequence[Example], answers: Sequence[str]) -> tuple[float, float]:
    """Return the means of F1 and exact match."""
    pairs = list(zip(answers, (example.references for example in examples), strict=True))
    return (
        sum(token_f1(answer, right) for answer, right in pairs) / len(pairs),
        sum(exact_match(answer, right) for answer, right in pairs) / len(pairs),
    )


def row_losses(program: GeneratingProgram, rows: Sequence[Row], on_batch: CallListener = ignore) -> Float64Array:
    """Return the mean negative log-likelihood of every row under the present state: f64[len(rows)].

    `on_batch` is called with (rows done, all rows) after every call; it may raise to end the rest.
    """
    losses = np.empty(len(rows), dtype=np.float64)
    done = 0
    for batch in evaluation_batches(rows, program.manifest):
        loss_N = program.evaluate(batch)
        losses[batch.indices] = loss_N[: len(batch.indices)]
        done += len(batch.indices)
        on_batch(done, len(rows))
    return losses


def is_moved(program: GeneratingProgram) -> bool:
    """Whether the adapter changes anything: B of a site is not zero."""
    return any(bool(b.any()) for b in program.read_state().values())


@contextmanager
def without_adapter(program: GeneratingProgram) -> Iterator[None]:
    """Set B of every site to zero, and restore it at the end."""
    state = program.read_state()
    if not any(bool(b.any()) for b in state.values()):
        yield
        return
    program.write_state({name: np.zeros_like(b) for name, b in state.items()})
    try:
        yield
    finally:
        program.write_state(state)
