"""A row's share of a step is bounded and covered by noise, and the noise is that of the budget."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prgec.core.contract.arrays import Float64Array
from prgec.errors import UsageError
from prgec.runtime.training.privacy import Privacy, privacy_terms
from prgec.runtime.training.privacy_budget import PrivacyBudget, delta_of, noise_for, num_visits

EPS = 1e-2
ROWS = np.arange(4)


def _losses(seed: int, scale: float = 1.0) -> Float64Array:
    """Losses of q = 3 queries, two signs and B = 4 rows."""
    return np.random.default_rng(seed).normal(2.0, scale, (3, 2, 4))


def _sum(losses: Float64Array, indices: Float64Array, clip: float) -> Float64Array:
    """The sum of the rows' shares, as the released differences have it: f64[q]."""
    hidden = Privacy(noise_multiplier=0.0, clip=clip).hide(losses, indices, EPS)
    result: Float64Array = (hidden[:, 0] - hidden[:, 1]) / (2 * EPS) * losses.shape[-1]
    return result


@pytest.mark.parametrize("clip", [0.0, 0.5, 30.0])
@pytest.mark.parametrize("seed", range(5))
def test_one_row_moves_the_sum_by_its_bound_at_most(clip: float, seed: int) -> None:
    losses = _losses(seed, scale=10.0**seed)
    without = losses.copy()
    without[:, :, 2] = 1.0  # Both signs are equal, so that the row has no share.
    moved = np.linalg.norm(_sum(losses, ROWS, clip) - _sum(without, ROWS, clip))
    assert 0 < moved <= (clip or 1.0) + 1e-6


def test_a_row_that_is_there_twice_has_one_share() -> None:
    losses = _losses(0)
    losses[:, :, 3] = losses[:, :, 1]
    twice = _sum(losses, np.array([0, 1, 2, 1]), 0.0)
    losses[:, :, 3] = 1.0
    np.testing.assert_allclose(twice, _sum(losses, ROWS, 0.0), rtol=1e-12)


def test_shares_below_the_bound_are_as_measured() -> None:
    losses = _losses(1)
    hidden = Privacy(noise_multiplier=0.0, clip=1e9).hide(losses, ROWS, EPS)
    np.testing.assert_allclose(hidden, losses.mean(axis=2).mean(axis=1, keepdims=True) + _signs(losses), rtol=1e-12)


def _signs(losses: Float64Array) -> Float64Array:
    half = (losses[:, 0] - losses[:, 1]).mean(axis=1) / 2
    return np.stack([half, -half], axis=1)


@pytest.mark.parametrize("clip", [0.0, 3.0])
def test_noise_has_the_stated_deviation(clip: float) -> None:
    privacy = Privacy(noise_multiplier=2.0, clip=clip, noise=np.random.default_rng(0))
    flat = np.ones((20_000, 2, 4))
    hidden = privacy.hide(flat, ROWS, EPS)
    summed = (hidden[:, 0] - hidden[:, 1]) / (2 * EPS) * 4
    assert summed.std() == pytest.approx(2.0 * (clip or 1.0), rel=0.02)
    assert summed.mean() == pytest.approx(0.0, abs=0.1)


def test_noise_differs_from_run_to_run() -> None:
    first, second = (Privacy(noise_multiplier=1.0).hide(_losses(0), ROWS, EPS) for _ in range(2))
    assert not np.array_equal(first, second)


# Google's dp-accounting 0.6.0: get_epsilon_gaussian and get_sigma_gaussian.
@pytest.mark.parametrize(
    ("noise", "delta", "epsilon"),
    [
        (1.0, 1e-5, 4.377178095681137),
        (2.0, 1e-5, 1.9930914044151198),
        (0.5, 1e-5, 9.997256146434315),
        (5.0, 1e-3, 0.4539201557417135),
        (3.7, 1e-6, 1.153844310520917),
        (3.730631634815937, 1e-5, 1.0),
        (0.6002290721989517, 1e-5, 8.0),
        (36.304690426195194, 1e-6, 0.1),
        (0.2694465187365545, 1e-4, 20.0),
    ],
)
def test_budget_is_that_of_a_published_accountant(noise: float, delta: float, epsilon: float) -> None:
    assert noise_for(epsilon, delta, 1) == pytest.approx(noise, rel=1e-6)


def test_rows_used_several_times_cost_what_a_published_accountant_says() -> None:
    # Its PLDAccountant, of a Gaussian mechanism with noise 3 that is composed 9 times.
    assert noise_for(4.37717810002493, 1e-5, 9) == pytest.approx(3.0, rel=1e-6)


@pytest.mark.parametrize(("noise", "epsilon", "visits"), [(1.0, 0.5, 1), (2.0, 1.0, 4), (0.7, 3.0, 2)])
def test_delta_is_the_integral_of_its_definition(noise: float, epsilon: float, visits: int) -> None:
    mu = math.sqrt(visits) / noise
    x = np.linspace(-30, 30, 2_000_001)
    density, shifted = (np.exp(-0.5 * (x - at) ** 2) / math.sqrt(2 * math.pi) for at in (0.0, mu))
    excess = np.maximum(0.0, shifted - math.exp(epsilon) * density)
    assert delta_of(noise, epsilon, visits) == pytest.approx(float(excess.sum() * (x[1] - x[0])), rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 2.0, 8.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
@pytest.mark.parametrize("visits", [1, 7, 10_000])
def test_noise_keeps_the_budget_and_no_less_does(epsilon: float, delta: float, visits: int) -> None:
    noise = noise_for(epsilon, delta, visits)
    assert delta_of(noise, epsilon, visits) <= delta < delta_of(0.99 * noise, epsilon, visits)


def test_end_of_the_budget() -> None:
    with pytest.raises(UsageError, match=r"--dp-epsilon is 101; expected 100 or less"):
        noise_for(101.0, 1e-5, 1)


@pytest.mark.parametrize(("steps", "batch_size", "num_rows", "expected"), [(5, 2, 10, 1), (6, 2, 10, 2), (3, 4, 2, 6)])
def test_visits_are_begun_epochs(steps: int, batch_size: int, num_rows: int, expected: int) -> None:
    assert num_visits(steps, batch_size, num_rows) == expected


def test_budget_is_one_line() -> None:
    budget = PrivacyBudget.of_run(epsilon=8.0, delta=1e-5, steps=5, batch_size=2, num_rows=10)
    assert budget.describe() == (
        "private: epsilon 8 at delta 1e-05 for rows used once, by noise of 0.6 times a row's share"
    )


@pytest.mark.parametrize(
    ("epsilon", "delta", "clip", "message"),
    [
        (-1.0, 1e-5, 0.0, "--dp-epsilon is -1.0"),
        (math.nan, 1e-5, 0.0, "--dp-epsilon is nan"),
        (1.0, 0.0, 0.0, "--dp-delta is 0.0"),
        (1.0, 1.0, 0.0, "--dp-delta is 1.0"),
        (1.0, 1e-5, -1.0, "--dp-clip is -1.0"),
        (0.0, 1e-5, 1.0, "--dp-clip needs --dp-epsilon"),
    ],
)
def test_refuses_impossible_values(epsilon: float, delta: float, clip: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        privacy_terms(epsilon, delta, clip)
