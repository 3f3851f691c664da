"""Tokens are drawn from the distribution that temperature, top-k and top-p leave, and again from the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from prgec.errors import UsageError
from prgec.runtime.training.sampling import Sampler, Sampling, likely, power_of_e, uniform

LOGITS = np.log(np.array([0.1, 0.5, 0.15, 0.25], dtype=np.float32))


def _drawn(sampling: Sampling, count: int = 4000) -> np.ndarray:
    sampler = Sampler(sampling)
    return np.bincount([sampler.choose(LOGITS) for _ in range(count)], minlength=4) / count


def test_the_most_likely() -> None:
    assert Sampler(Sampling()).choose(LOGITS) == 1
    # The first of equal ones, as argmax has it everywhere.
    assert Sampler(Sampling()).choose(np.array([0.0, 2.0, 2.0], dtype=np.float32)) == 1


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0), [0.1, 0.5, 0.15, 0.25]),
        (Sampling(0.5), [0.01 / 0.345, 0.25 / 0.345, 0.0225 / 0.345, 0.0625 / 0.345]),
        (Sampling(1.0, top_k=2), [0, 2 / 3, 0, 1 / 3]),
        (Sampling(1.0, top_p=0.7), [0, 2 / 3, 0, 1 / 3]),
        (Sampling(1.0, top_p=0.4), [0, 1, 0, 0]),
        (Sampling(1.0, top_k=3, top_p=0.9), [0, 0.5 / 0.9, 0.15 / 0.9, 0.25 / 0.9]),
    ],
)
def test_frequencies(sampling: Sampling, expected: list[float]) -> None:
    # Three standard deviations of 4000 draws are 0.024 at most.
    np.testing.assert_allclose(_drawn(sampling), expected, atol=0.025)


def test_seeds() -> None:
    first, again, other = (
        [sampler.choose(LOGITS) for _ in range(20)]
        for sampler in (Sampler(Sampling(1.0, seed=3)), Sampler(Sampling(1.0, seed=3)), Sampler(Sampling(1.0, seed=4)))
    )
    assert first == again != other


def test_large_logits_do_not_overflow() -> None:
    ids, weights = likely(np.array([1e30, -1e30, 3e4], dtype=np.float32), Sampling(1e-3))
    assert (ids.tolist(), weights.tolist()) == ([0, 1, 2], [1.0, 0.0, 0.0])


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_the_fewest_with_a_share(spread: float) -> None:
    """Against a sorted vocabulary, of which many are equal."""
    logits = (np.random.default_rng(3).normal(0, spread, 5000).round(2)).astype(np.float32)
    chances = np.exp(logits.astype(np.float64))
    order = np.argsort(-logits, kind="stable")
    for top_k, top_p in ((0, 0.05), (0, 0.9), (70, 1.0), (70, 0.5), (4999, 0.999999), (9000, 0.3)):
        ids, weights = likely(logits, Sampling(1.0, top_k, top_p))
        among = order[: top_k or None]
        sums = chances[among].cumsum() / chances[among].sum()
        expected = among[: int(np.searchsorted(sums, top_p)) + 1]
        assert ids.tolist() == sorted(expected.tolist())
        np.testing.assert_allclose(weights / weights.sum(), chances[ids] / chances[ids].sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Sampling(-1.0), "--temperature is -1.0; expected a finite number, 0 or more"),
        (Sampling(float("nan")), "--temperature is nan; expected a finite number, 0 or more"),
        (Sampling(top_k=-1), "--top-k is -1; expected 0 or more"),
        (Sampling(top_p=0.0), "--top-p is 0.0; expected more than 0, at most 1"),
        (Sampling(seed=-1), "--seed is -1; expected 0 or more"),
    ],
)
def test_numbers_without_meaning(sampling: Sampling, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        sampling.check()


def test_numbers_the_other_driver_has_too() -> None:
    """The same are in tests/device/units/test_sampler.cpp."""
    assert [uniform(7, n).hex() for n in range(2)] == ["0x1.fc770de03d480p-8", "0x1.1b63aaf7174c4p-1"]
    assert uniform(2**40 + 7, 0).hex() == "0x1.26e2666f1f438p-4"
    powers = power_of_e(np.array([-0.3, -50.5, -699.0]))
    assert [float(x).hex() for x in powers] == [
        "0x1.7b4c869c37c05p-1",
        "0x1.1ad9f47f3722ap-73",
        "0x1.78694fe9f73ccp-1009",
    ]


def test_powers_of_e() -> None:
    exponents = -np.random.default_rng(0).uniform(0, 699, 10000)
    np.testing.assert_allclose(power_of_e(exponents), np.exp(exponents), rtol=4e-16)
    assert power_of_e(np.array([0.0, -701.0, -np.inf])).tolist() == [1.0, 0.0, 0.0]
