"""The demands of a data file on a program: lengths, padding, cuts and how often each answer is right.

Letters: B examples a step, T tokens, K label positions.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prgec.core.contract.arrays import IntArray
from prgec.core.data.batches import MIN_SEQ_LEN, epoch_order
from prgec.core.data.cut import fit
from prgec.core.data.dataset import Dataset
from prgec.core.data.row import Encoded, Sizes
from prgec.core.data.task import Example

# Seed of the order in which an epoch sees its rows: that of a run by default.
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How some counts are spread.

    Attributes:
        least: The smallest.
        median: Half of them are no larger.
        mean: Their mean.
        p90: 90 of 100 are no larger.
        p99: 99 of 100 are no larger.
        most: The largest.
        total: Their sum.
    """

    least: int
    median: int
    mean: float
    p90: int
    p99: int
    most: int
    total: int


@dataclass(frozen=True, kw_only=True)
class RowStats:
    """Statistics of a data file's rows under a program's T and K.

    Attributes:
        num_rows: Rows an epoch trains on; a document becomes several.
        tokens: Tokens of an item, before it is cut.
        targets: Tokens of what is learned of an item.
        num_cut: Rows that lost tokens, since they are longer than T.
        answers: How often each answer is right; empty where answers are free.
        padding: B -> share of padding in what an epoch computes, each step padded to its longest row.
        padding_to_t: The same where every row is padded to T, as programs with a fixed length do.
    """

    num_rows: int
    tokens: Spread
    targets: Spread
    num_cut: int
    answers: Mapping[str, int]
    padding: Mapping[int, float]
    padding_to_t: float


def stats_of(dataset: Dataset, encoded: Iterable[Encoded], sizes: Sizes, batch_sizes: Sequence[int]) -> RowStats:
    """Count what a data set asks of a program.

    Args:
        dataset: The items.
        encoded: Each with its right answer, uncut.
        sizes: T, K and the vocabulary of the program.
        batch_sizes: Values of B to give the padding of.

    Raises:
        DataError: If a completion does not fit K.
    """
    tokens, targets, fitted, num_cut = array("q"), array("q"), array("q"), 0

    def counted() -> Iterator[Encoded]:
        for each in encoded:
            tokens.append(len(each.row.tokens))
            targets.append(len(each.row.targets))
            yield each

    for row in fit(counted(), sizes):
        fitted.append(len(row.tokens))
        num_cut += row.truncated
    lengths: IntArray = np.array(fitted)
    return RowStats(
        num_rows=len(lengths),
        tokens=spread_of(tokens),
        targets=spread_of(targets),
        num_cut=num_cut,
        answers=_answers(dataset),
        padding={size: padding_ratio(lengths, size) for size in batch_sizes},
        padding_to_t=1.0 - float(lengths.mean()) / sizes.seq_len,
    )


def padding_ratio(lengths: IntArray, batch_size: int) -> float:
    """Return the share of padding in all positions of an epoch whose steps are padded to their longest row.

    Rows come in the order of a run. The last step of an epoch takes rows of the next one where there are too few.

    Args:
        lengths: i64[n], tokens of each row.
        batch_size: B.
    """
    count = len(lengths)
    num_steps = -(-count // batch_size)
    num_epochs = -(-num_steps * batch_size // count)
    order = np.concatenate([epoch_order(count, _SEED, epoch) for epoch in range(num_epochs)])
    steps = lengths[order[: num_steps * batch_size]].reshape(num_steps, batch_size)
    computed = int(np.maximum(steps.max(axis=1), MIN_SEQ_LEN).sum()) * batch_size
    return 1.0 - int(steps.sum()) / computed


def spread_of(counts: Sequence[int] | IntArray) -> Spread:
    """Return how some counts are spread; there is at least one."""
    values = np.sort(np.array(counts, dtype=np.int64))
    median, p90, p99 = (int(values[-(-len(values) * share // 100) - 1]) for share in (50, 90, 99))
    return Spread(
        least=int(values[0]),
        median=median,
        mean=float(values.mean()),
        p90=p90,
        p99=p99,
        most=int(values[-1]),
        total=int(values.sum()),
    )


def _answers(dataset: Dataset) -> dict[str, int]:
    """Count the right answers in label order, or the places of the right ones where every item brings its own."""
    examples = (each for each in dataset.examples if isinstance(each, Example) and each.completion is not None)
    candidates = dataset.candidates()
    if candidates:
        counts = Counter(str(each.completion) for each in examples)
        return {text: counts[text] for text in candidates}
    places = Counter(each.candidates.index(str(each.completion)) for each in examples if each.candidates)
    return {f"choice {place + 1}": places[place] for place in sorted(places)}
