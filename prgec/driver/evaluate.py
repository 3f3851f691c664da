"""Loss and accuracy of a program's present state, N different rows a call.

Letters: q queries, B examples a step, N = 2qB rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from prgec.contract import Manifest
from prgec.data.batches import evaluation_batches
from prgec.data.encode import Encoder, Row, encode_rows
from prgec.data.rows_file import RowSet
from prgec.data.tasks import Dataset
from prgec.driver.program import TrainableProgram
from prgec.driver.sums import ordered_mean
from prgec.driver.trainer import Float64Array
from prgec.errors import NumericsError

BatchListener = Callable[[int, int], None]


@dataclass(frozen=True)
class Evaluation:
    """What a program scores on a data set.

    Attributes:
        loss: Mean over examples of the right completion's mean negative log-likelihood.
        accuracy: Share of examples whose right completion has the lowest of the candidates' losses; None when the
            task is open-ended.
        num_examples: Examples evaluated.
        num_calls: Forward calls it took.
        seconds: Wall time.
    """

    loss: float
    accuracy: float | None
    num_examples: int
    num_calls: int
    seconds: float


def encode_eval_set(dataset: Dataset, program: TrainableProgram) -> RowSet:
    """Encode every example with every candidate for a program that is open.

    Raises:
        DataError: If an example cannot be encoded for this program.
    """
    return encode_row_set(dataset, program.tokenizer, program.manifest)


def encode_row_set(dataset: Dataset, tokenizer: Encoder, manifest: Manifest) -> RowSet:
    """Encode every example with every candidate.

    Raises:
        DataError: If an example cannot be encoded for this program.
    """
    candidates = dataset.candidates()
    pairs, answers = [], []
    for example in dataset.examples:
        assert example.completion is not None, "evaluation data are read with labels"
        choices = candidates or (example.completion,)
        pairs += [(example, choice) for choice in choices]
        answers.append(choices.index(example.completion))
    rows = encode_rows(pairs, tokenizer, manifest)
    return RowSet(tuple(rows), max(1, len(candidates)), tuple(answers))


def evaluate(
    program: TrainableProgram,
    eval_set: RowSet,
    on_batch: BatchListener = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Score the program's present state. Flush pending updates first: they are not part of the state.

    Args:
        program: The program.
        eval_set: Encoded examples.
        on_batch: Called with (rows done, all rows) after every call.
        should_stop: Asked before every call.

    Returns:
        The scores; None if it was stopped.

    Raises:
        NumericsError: If the mean loss is not finite.
    """
    start = time.monotonic()
    all_losses = row_losses(program, eval_set.rows, on_batch, should_stop)
    if all_losses is None:
        return None
    losses = all_losses.reshape(-1, eval_set.num_candidates)
    answers = np.array(eval_set.answers)
    loss = float(ordered_mean(losses[np.arange(len(answers)), answers]))
    if not np.isfinite(loss):
        raise NumericsError("the evaluation loss is not finite", hint="the state has diverged: lower --lr")
    accuracy = float((losses.argmin(axis=1) == answers).mean()) if eval_set.num_candidates > 1 else None
    num_calls = -(-len(eval_set.rows) // program.manifest.num_distinct_rows)
    return Evaluation(loss, accuracy, len(answers), num_calls, time.monotonic() - start)


def row_losses(
    program: TrainableProgram, rows: Sequence[Row], on_batch: BatchListener, should_stop: Callable[[], bool]
) -> Float64Array | None:
    """Return the mean negative log-likelihood of every row under the present state: f64[len(rows)], None if stopped."""
    losses = np.empty(len(rows), dtype=np.float64)
    no_update = np.zeros(program.manifest.q, dtype=np.float32)
    done = 0
    for batch in evaluation_batches(rows, program.manifest):
        if should_stop():
            return None
        loss_N = program.forward(batch.tokens_NT, batch.label_pos_NK, batch.targets_NK, no_update,
                                 lr=0.0, eps=0.0, seed=0, step=1)  # fmt: skip
        losses[batch.indices] = loss_N[: len(batch.indices)]
        done += len(batch.indices)
        on_batch(done, len(rows))
    return losses
