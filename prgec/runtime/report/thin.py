"""A line with as many points as paper can show: of every stretch its lowest and highest, so that no spike is lost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def thin(
    xs: Sequence[float] | np.ndarray, ys: Sequence[float] | np.ndarray, most: int
) -> tuple[list[float], list[float]]:
    """Return at most `most` points of a line, its first and last among them.

    Args:
        xs: Positions, in order.
        ys: Values.
        most: At least 4.
    """
    if len(xs) <= most:
        return list(xs), list(ys)
    values = np.asarray(ys, dtype=np.float64)
    edges = np.linspace(0, len(values), (most - 2) // 2 + 1).astype(int)
    kept = {0, len(values) - 1}
    for first, last in zip(edges, edges[1:], strict=False):
        kept |= {int(first + values[first:last].argmin()), int(first + values[first:last].argmax())}
    places = sorted(kept)
    return [float(xs[place]) for place in places], values[places].tolist()
