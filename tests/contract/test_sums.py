"""Sums go from left to right, whatever their length."""

from __future__ import annotations

import numpy as np
import pytest

from prgec.core.contract.sums import ordered_mean, ordered_sum


@pytest.mark.parametrize("count", [1, 3, 8, 200])
def test_adds_in_order(count: int) -> None:
    values = np.random.default_rng(count).standard_normal((2, count)) * 10.0 ** np.arange(count)[::-1].clip(0, 15)
    for row, found, mean in zip(values.tolist(), ordered_sum(values), ordered_mean(values), strict=True):
        total = 0.0
        for value in row:
            total += value
        assert found == total
        assert mean == total / count


def test_the_order_matters() -> None:
    # Pairwise sums would keep the ones.
    assert ordered_sum(np.array([1e16, *[1.0] * 200])) == 1e16
