from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from prgec.core.data.correlation import matthews, pearson, spearman


@pytest.mark.parametrize("num_classes", [2, 3])
def test_matthews_of_two_classes_is_phi(num_classes: int) -> None:
    """scipy knows Pearson's; for two classes the two are the same. For three, Gorodkin's sums are the oracle."""
    rng = np.random.default_rng(num_classes)
    right = rng.integers(0, num_classes, 200)
    found = np.where(rng.random(200) < 0.6, right, rng.integers(0, num_classes, 200))
    if num_classes == 2:
        expected = stats.pearsonr(right, found).statistic
    else:
        table = np.array([[np.sum((right == a) & (found == b)) for b in range(3)] for a in range(3)], float)
        n, trace, rows, columns = table.sum(), np.trace(table), table.sum(1), table.sum(0)
        expected = (n * trace - rows @ columns) / np.sqrt((n**2 - rows @ rows) * (n**2 - columns @ columns))
    assert matthews(right.tolist(), found.tolist()) == pytest.approx(expected, abs=1e-12)


def test_one_answer_for_all_is_no_correlation() -> None:
    assert matthews([0, 1, 1], [1, 1, 1]) == pearson([1.0, 2.0], [3.0, 3.0]) == spearman([1.0, 1.0], [3.0, 4.0]) == 0.0
    assert matthews([0, 1, 1, 0], [0, 1, 1, 0]) == pytest.approx(1.0)
    assert matthews([0, 1, 1, 0], [1, 0, 0, 1]) == pytest.approx(-1.0)


def test_numbers_as_scipy_has_them() -> None:
    rng = np.random.default_rng(0)
    wanted = np.round(rng.random(100) * 5, 1)
    found = wanted + rng.normal(size=100)
    found[:10] = found[10]
    assert pearson(wanted.tolist(), found.tolist()) == pytest.approx(stats.pearsonr(wanted, found).statistic, abs=1e-12)
    expected = stats.spearmanr(wanted, found).statistic
    assert spearman(wanted.tolist(), found.tolist()) == pytest.approx(expected, abs=1e-12)
