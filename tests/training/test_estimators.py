"""Estimators turn losses into coefficients exactly as their formulas say."""

from __future__ import annotations

import numpy as np
import pytest

from prgec.cli.main import main
from prgec.errors import UsageError
from prgec.runtime.training.estimators import DEFAULT_ESTIMATOR, ESTIMATORS, Norm, Plain, Std, find_estimator

PLUS, MINUS = np.array([1.10, 0.90, 1.00, 1.30]), np.array([1.00, 1.00, 1.00, 1.00])


def test_plain_is_the_projected_gradient() -> None:
    np.testing.assert_allclose(Plain().coefficients(PLUS, MINUS, 1e-2), [5.0, -5.0, 0.0, 15.0], rtol=1e-12)


def test_std_divides_by_the_spread_over_queries() -> None:
    g = np.array([5.0, -5.0, 0.0, 15.0])
    spread = np.sqrt(((g - g.mean()) ** 2).sum() / 3)
    expected = g / (spread + 0.01)
    np.testing.assert_allclose(Std(floor=0.01, cap=9.0).coefficients(PLUS, MINUS, 1e-2), expected, rtol=1e-12)


@pytest.mark.parametrize("q", [1, 2, 4])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_norm_moves_every_weight_by_lr_in_root_mean_square(q: int, scale: float) -> None:
    """Over many weights, whose noise is nearly orthogonal between queries."""
    noise = np.random.default_rng(0).standard_normal((q, 200_000))
    g = Norm(decay=0.9, floor=0.0).coefficients(1.0 + scale * (PLUS - MINUS)[:q], MINUS[:q], 1e-2)
    step = 3e-3 / q * g @ noise
    assert np.sqrt((step**2).mean()) == pytest.approx(3e-3, rel=0.02)
    plain = Plain().coefficients(PLUS[:q], MINUS[:q], 1e-2)
    np.testing.assert_allclose(g / np.linalg.norm(g), plain / np.linalg.norm(plain), rtol=1e-9)


def test_norm_takes_small_steps_where_the_loss_is_flat() -> None:
    noise = 1e-7 * np.array([1.0, -2.0, 0.5, 1.5])
    assert 0 < np.abs(Norm().coefficients(1.0 + noise, np.ones(4), 1e-2)).max() < 1e-2
    assert not Norm().coefficients(np.ones(4), np.ones(4), 1e-2).any()
    assert Norm().remark(1) is None


@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_norm_with_a_running_mean(floor: float) -> None:
    estimator, moment = Norm(decay=0.9, floor=floor), 0.0
    for step, scale in enumerate((1.0, 3.0, 0.5), 1):
        g = scale * np.array([5.0, -5.0, 0.0, 15.0])
        moment = 0.9 * moment + 0.1 * (g**2).mean()
        found = estimator.coefficients(1.0 + scale * (PLUS - MINUS), MINUS, 1e-2)
        np.testing.assert_allclose(found, 2.0 * g / (np.sqrt(moment / (1 - 0.9**step)) + floor), rtol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_std_does_not_depend_on_the_scale_of_the_loss(scale: float) -> None:
    reference = Std(floor=0.0).coefficients(PLUS, MINUS, 1e-2)
    np.testing.assert_allclose(Std(floor=0.0).coefficients(scale * PLUS, scale * MINUS, 1e-2), reference, rtol=1e-9)


def test_std_takes_small_steps_where_the_loss_is_flat() -> None:
    noise = 1e-7 * np.array([1.0, -2.0, 0.5, 1.5])
    assert np.abs(Std().coefficients(1.0 + noise, np.ones(4), 1e-2)).max() < 1e-2
    assert not Std().coefficients(np.ones(4), np.ones(4), 1e-2).any()


def test_std_caps_queries_that_agree() -> None:
    agreeing = Std(cap=4.0).coefficients(np.array([2.0, 2.001]), np.array([1.0, 1.0]), 1e-2)
    np.testing.assert_allclose(agreeing, [4.0, 4.0])


def test_std_with_one_query_caps_and_says_so() -> None:
    assert Std(cap=4.0).coefficients(np.array([1.01]), np.array([1.0]), 1e-2) == pytest.approx(0.5)
    assert Std(cap=4.0).coefficients(np.array([9.0]), np.array([1.0]), 1e-2) == pytest.approx(4.0)
    assert "q > 1" in (Std().remark(1) or "")
    assert Std().remark(2) is None
    assert Plain().remark(1) is None


def test_estimators_with_memory_are_not_shared() -> None:
    assert find_estimator("norm") is not find_estimator("norm")


def test_defaults_are_those_of_the_decision() -> None:
    """As docs/decisions/010-default-estimator.md measured them."""
    assert Norm() == Norm(decay=0.99, floor=0.01) and Std() == Std(floor=0.01, cap=4.0)


def test_table() -> None:
    assert set(ESTIMATORS) == {"plain", "norm", "std"}
    assert type(find_estimator(DEFAULT_ESTIMATOR)) is ESTIMATORS[DEFAULT_ESTIMATOR]
    with pytest.raises(UsageError, match="unknown estimator 'adam'.*known: plain, norm, std"):
        find_estimator("adam")


def test_an_estimator_that_left_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "model.pte", "--data", "train.jsonl", "--estimator", "clip"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: Invalid value for '--estimator': 'clip' is not one of 'plain', 'norm', 'std'.")
    assert told.count("\n") == 1
