"""Sums in a stated order, so that drivers in other languages get the same bits.

NumPy's own sums add in an order that depends on shape, version and processor. These add from left to right.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Float64Array: TypeAlias = npt.NDArray[np.float64]


def ordered_sum(values: Float64Array) -> Float64Array:
    """Add along the last axis, first element first: f64[..., n] -> f64[...]; n >= 1."""
    # A cumulative sum has no other order to add in.
    result: Float64Array = np.cumsum(values, axis=-1)[..., -1]
    return result


def ordered_mean(values: Float64Array) -> Float64Array:
    """Return `ordered_sum` divided by the number of elements: f64[..., n] -> f64[...]; n >= 1."""
    result: Float64Array = ordered_sum(values) / values.shape[-1]
    return result
