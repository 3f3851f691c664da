"""Arrange rows into the arrays one forward call takes, and say which examples each step sees.

Letters: q queries, B examples a step, N = 2qB rows, T tokens, K label positions.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from prgec.core.contract.arrays import FloatArray
from prgec.core.contract.calls import Batch
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import IGNORE_TARGET
from prgec.core.data.encode import Row
from prgec.runtime_ops.philox import MASK, philox4x32

logger = logging.getLogger(__name__)
IntArray: TypeAlias = npt.NDArray[np.int64]

# A dynamic sequence axis is exported with this lower bound.
MIN_SEQ_LEN = 2
# Place of the query in the counter of the noise; queries themselves are small numbers.
_ORDER_QUERY = 0xFFFFFFFE


def step_indices(num_rows: int, batch_size: int, seed: int, step: int) -> IntArray:
    """Return the rows that training step `step` (counted from 1) sees: i64[B].

    Epochs are one endless sequence of permutations cut into steps, so that every row is seen once per epoch whatever
    B is, and any step can be computed from its number alone (resuming needs no history).
    """
    first = (step - 1) * batch_size
    positions = range(first, first + batch_size)
    epochs = {position // num_rows for position in positions}
    orders = {epoch: epoch_order(num_rows, seed, epoch) for epoch in epochs}
    return np.array([orders[p // num_rows][p % num_rows] for p in positions], dtype=np.int64)


@functools.lru_cache(maxsize=2)
def epoch_order(num_rows: int, seed: int, epoch: int) -> IntArray:
    """Return the permutation of the rows in one epoch: i64[num_rows], read-only.

    Rows are sorted by 64 random bits each, drawn with the generator of the noise from a counter no noise uses, so that
    every driver in any language finds the same order (docs/decisions/006-one-order.md).
    """
    rows: IntArray = np.arange(num_rows, dtype=np.int64)
    query, zero, seed_high, seed_low, key = (
        np.full_like(rows, word) for word in (_ORDER_QUERY, 0, (seed >> 32) & MASK, seed & MASK, epoch & MASK)
    )
    x0, x1, _, _ = philox4x32((rows, query, zero, seed_high), (seed_low, key))
    order = np.argsort((x1.astype(np.uint64) << np.uint64(32)) | x0.astype(np.uint64), kind="stable").astype(np.int64)
    order.setflags(write=False)
    return order


def training_batch(rows: Sequence[Row], indices: IntArray, manifest: Manifest) -> Batch:
    """Replicate B examples for every query and sign, in contract order; as they are where gradients are computed.

    Args:
        rows: All training rows.
        indices: i64[B], rows of this step.
        manifest: Shapes of the program.
    """
    # Row (i*2 + s)*B + b is example b: the examples in order, once for every query and sign.
    order = np.tile(indices, manifest.num_rows // manifest.batch_size)
    chosen = {i: rows[i] for i in indices.tolist()}  # a row may be decoded anew on each access
    return _pad([chosen[i] for i in order.tolist()], order, manifest)


def step_batch(rows: Sequence[Row], seed: int, step: int, manifest: Manifest) -> Batch:
    """Return the batch of training step `step`, counted from 1, of runs that take B rows a step."""
    return training_batch(rows, step_indices(len(rows), manifest.batch_size, seed, step), manifest)


def evaluation_batches(rows: Sequence[Row], manifest: Manifest) -> Iterator[Batch]:
    """Yield batches of as many different rows as the program can hold, N or B; the last one is filled up.

    Rows come sorted by length, so that a program with a dynamic T pads little; `Batch.indices` maps losses back.
    """
    order = np.argsort([len(row.tokens) for row in rows], kind="stable").astype(np.int64)
    distinct = manifest.num_distinct_rows
    for start in range(0, len(order), distinct):
        indices = order[start : start + distinct]
        chosen = [rows[i] for i in indices.tolist()]
        chosen += [chosen[-1]] * (distinct - len(chosen))
        yield _pad(chosen * (manifest.num_rows // distinct), indices, manifest)


def warn_of_padding(rows: Sequence[Row], manifest: Manifest) -> None:
    """Say so where a program whose T is fixed computes at least twice the tokens that its longest row has."""
    if manifest.dynamic_seq_len:
        return
    longest = max((len(row.tokens) for row in rows), default=manifest.seq_len)
    if 2 * longest <= manifest.seq_len:
        logger.warning(
            "the program computes %d tokens of every row, and the longest has %d: compile with --data to save it",
            manifest.seq_len,
            longest,
        )


def _pad(rows: Sequence[Row], indices: IntArray, manifest: Manifest) -> Batch:
    longest = max(len(row.tokens) for row in rows)
    length = max(longest, MIN_SEQ_LEN) if manifest.dynamic_seq_len else manifest.seq_len
    tokens_NT = np.full((len(rows), length), manifest.pad_token_id, dtype=np.int64)
    label_pos_NK = np.zeros((len(rows), manifest.num_labels), dtype=np.int64)
    targets_NK = np.full((len(rows), manifest.num_labels), IGNORE_TARGET, dtype=np.int64)
    for n, row in enumerate(rows):
        tokens_NT[n, : len(row.tokens)] = row.tokens
        label_pos_NK[n, : len(row.label_pos)] = row.label_pos
        targets_NK[n, : len(row.targets)] = row.targets
    return Batch(tokens_NT, label_pos_NK, targets_NK, indices, _weights(rows, manifest))


def _weights(rows: Sequence[Row], manifest: Manifest) -> FloatArray | None:
    if not any(row.weights for row in rows):
        return None
    weights_NK = np.ones((len(rows), manifest.num_labels), dtype=np.float32)
    for n, row in enumerate(rows):
        weights_NK[n, : len(row.weights)] = row.weights
    return weights_NK
