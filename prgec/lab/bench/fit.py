"""Costs of a machine out of timed steps: the least squares of relative errors, with no cost below zero.

There are five unknowns, so every choice of those that are not zero is solved and the best admissible one taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import astuple, fields

import numpy as np

from prgec.compiler.plan.costs import Costs

_NUM_COSTS = len(fields(Costs))


def fit_costs(steps: Sequence[tuple[Costs, float]]) -> Costs:
    """Return the seconds of one of each.

    Args:
        steps: How much of everything a step has, and the seconds it took.

    Raises:
        ValueError: If no costs explain them, as without any step.
    """
    # Divided by the seconds: a short step counts as much as a long one.
    table = np.array([[many / seconds for many in astuple(counts)] for counts, seconds in steps])
    best, least = None, np.inf
    for size in range(1, _NUM_COSTS + 1):
        for chosen in map(list, itertools.combinations(range(_NUM_COSTS), size)):
            if not table.size or not table[:, chosen].any(axis=0).all():
                continue
            # Columns differ by ten orders of magnitude.
            scale = table[:, chosen].max(axis=0)
            found = np.linalg.lstsq(table[:, chosen] / scale, np.ones(len(table)), rcond=None)[0] / scale
            error = float(np.square(table[:, chosen] @ found - 1.0).sum())
            if (found >= 0).all() and error < least - 1e-12:
                best, least = dict(zip(chosen, map(float, found), strict=True)), error
    if best is None:
        raise ValueError("no costs explain the steps")
    return Costs(*(best.get(index, 0.0) for index in range(_NUM_COSTS)))
