"""Scores of GLUE that are not shares: Matthews correlation of classes, Pearson's and Spearman's of numbers.

Letters: n examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prgec.core.contract.arrays import Float64Array


def matthews(answers: Sequence[int], found: Sequence[int]) -> float:
    """Return the correlation between right and found classes, in [-1, 1]; 0 where either is always the same."""
    classes = range(max(*answers, *found) + 1)
    right, said = (np.array([[each == c for c in classes] for each in column], float) for column in (answers, found))
    cross, own, other = (_covariance(*pair) for pair in ((right, said), (right, right), (said, said)))
    return float(cross / np.sqrt(own * other)) if own > 0 and other > 0 else 0.0


def pearson(wanted: Sequence[float], found: Sequence[float]) -> float:
    """Return the linear correlation of two columns of numbers; 0 where either is always the same."""
    x, y = (np.asarray(column, dtype=np.float64) - np.mean(column) for column in (wanted, found))
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size > 0 else 0.0


def spearman(wanted: Sequence[float], found: Sequence[float]) -> float:
    """Return the correlation of ranks; equal numbers share the mean of theirs."""
    return pearson(_ranks(wanted).tolist(), _ranks(found).tolist())


def _covariance(x: Float64Array, y: Float64Array) -> float:
    """Sum over classes of the covariance of two indicator columns, n times."""
    return float(((x - x.mean(0)) * (y - y.mean(0))).sum())


def _ranks(column: Sequence[float]) -> Float64Array:
    values = np.asarray(column, dtype=np.float64)
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Float64Array = (last - (counts - 1) / 2)[place]
    return ranks
