"""The numbers of many devices as one: a weighted mean, or one that a few wrong devices cannot move far.

Letters: D devices, q queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prgec.core.contract.arrays import Float64Array, FloatArray
from prgec.core.contract.sums import ordered_sum
from prgec.errors import DataError, UsageError

# Share of the devices that a trimmed mean leaves out at each end.
_TRIMMED = 0.2
# A number beyond this is as good as none: estimators square it, programs multiply by it, and both keep f32.
_LARGEST = 1e30


@dataclass(frozen=True, kw_only=True)
class Report:
    """The measurements of one device in one step.

    Attributes:
        device: Name of the device.
        step: Number of the step, from 1.
        num_rows: Rows it measured.
        differences: Mean over its rows of the loss under +eps less that under -eps, for each query: f64[q]. Losses
            themselves stay on the device.
    """

    device: str
    step: int
    num_rows: int
    differences: Float64Array

    def check(self, q: int, max_rows: int) -> None:
        """Refuse measurements that cannot be used.

        Args:
            q: Queries a step.
            max_rows: Most rows that a device may count.

        Raises:
            DataError: If there are not q finite numbers, no rows, or too many.
        """
        if self.differences.shape != (q,):
            raise DataError(f"a report has {self.differences.size} numbers, and a step has q = {q}", where=self.device)
        check_numbers(self.differences, self.num_rows, max_rows, what="a report", device=self.device)


def check_numbers(values: FloatArray | Float64Array, num_rows: int, max_rows: int, *, what: str, device: str) -> None:
    """Refuse numbers that are not finite, and counts of rows that no device can have.

    Args:
        values: The numbers, any shape.
        num_rows: Rows that they were measured on.
        max_rows: Most rows that a device may count.
        what: The message they came in, for the error.
        device: The sender.

    Raises:
        DataError: Naming the device.
    """
    if not (np.abs(values) <= _LARGEST).all():
        raise DataError(f"{what} has numbers that are not finite", where=device)
    if not 1 <= num_rows <= max_rows:
        raise DataError(f"{what} is of {num_rows} rows; expected 1 to {max_rows}", where=device)


Merge = Callable[[Float64Array, Float64Array], Float64Array]


def mean(values_Dq: Float64Array, rows_D: Float64Array) -> Float64Array:
    """Return the mean over all rows of all devices, f64[q], summed in the order of the devices."""
    result: Float64Array = ordered_sum((values_Dq * rows_D[:, None]).T) / ordered_sum(rows_D)
    return result


def median(values_Dq: Float64Array, rows_D: Float64Array) -> Float64Array:
    """Return the median of the devices for each query, f64[q]: fewer than half of them cannot move it far.

    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (2018), definition 1.
    """
    result: Float64Array = np.median(values_Dq, axis=0)
    return result


def trimmed(values_Dq: Float64Array, rows_D: Float64Array) -> Float64Array:
    """Return the mean of each query without a fifth of the devices at either end, f64[q] (definition 2 there)."""
    count = int(len(values_Dq) * _TRIMMED)
    kept = np.sort(values_Dq, axis=0)[count : len(values_Dq) - count]
    result: Float64Array = ordered_sum(kept.T) / len(kept)
    return result


MERGES: Mapping[str, Merge] = {"mean": mean, "median": median, "trimmed": trimmed}


def find_merge(name: str) -> Merge:
    """Return the row of the table.

    Raises:
        UsageError: If there is no such row.
    """
    if name not in MERGES:
        raise UsageError(f"there is no merge {name!r}", hint=f"take one of {', '.join(MERGES)}")
    return MERGES[name]


def merged(reports: Sequence[Report], merge: Merge) -> Float64Array:
    """Return the differences of a step, f64[q]; the order in which reports came does not matter."""
    in_order = sorted(reports, key=lambda each: each.device)
    values_Dq = np.stack([each.differences for each in in_order])
    return merge(values_Dq, np.array([each.num_rows for each in in_order], dtype=np.float64))
