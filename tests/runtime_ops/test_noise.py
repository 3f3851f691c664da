"""The normals: distribution, independence along every field of the key, and the specification of each bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from prgec.runtime_ops import host, noise
from prgec.runtime_ops.lora import lora_a

NUM_SAMPLES = 1 << 18


def draw(seed: int = 1, step: int = 0, site: int = 0, q: int = 1, numel: int = NUM_SAMPLES) -> torch.Tensor:
    return noise.randn(torch.tensor(seed), torch.tensor(step), site, q, [numel])


def test_moments() -> None:
    z = draw(q=4).double().flatten()
    count = z.numel()
    # Five standard errors of each moment of a standard normal.
    assert abs(z.mean()) < 5 / count**0.5
    assert abs((z**2).mean() - 1) < 5 * (2 / count) ** 0.5
    assert abs((z**3).mean()) < 5 * (15 / count) ** 0.5
    assert abs((z**4).mean() - 3) < 5 * (96 / count) ** 0.5


@pytest.mark.parametrize("lane", range(4))
def test_kolmogorov_smirnov(lane: int) -> None:
    z = draw(seed=7)[0].numpy()[lane::4]
    assert stats.kstest(z, "norm").pvalue > 1e-3


@pytest.mark.parametrize(
    "other",
    [{"seed": 2}, {"seed": 1 + 2**32}, {"step": 1}, {"step": -1}, {"site": 1}],
    ids=["seed low", "seed high", "step", "step minus one", "site"],
)
def test_key_fields_give_independent_streams(other: dict[str, int]) -> None:
    assert_independent(draw()[0], draw(**other)[0])


def test_queries_and_elements_are_independent() -> None:
    z = draw(q=2)
    assert_independent(z[0], z[1])
    for lag in (1, 2, 3, 4, 8):
        assert_independent(z[0, :-lag], z[0, lag:])


def test_the_frozen_stream_is_no_query() -> None:
    rows = lora_a(seed=1, site=0, rank=64, in_features=NUM_SAMPLES // 64).flatten() * (NUM_SAMPLES // 64) ** 0.5
    assert stats.kstest(rows.numpy(), "norm").pvalue > 1e-3
    assert_independent(rows, draw()[0])


@pytest.mark.parametrize(
    ("seed", "site", "rank", "width"),
    [(1, 0, 4, 7), (2**40 + 5, 3, 16, 2048), (-3, 7, 8, 1000), (0, 0, 1, 1), (123, 2**31, 3, 257)],
)
def test_the_frozen_a_of_a_host_has_the_same_bits(seed: int, site: int, rank: int, width: int) -> None:
    assert host.frozen_a(seed, site, rank, width).tobytes() == lora_a(seed, site, rank, width).numpy().tobytes()


def assert_independent(a: torch.Tensor, b: torch.Tensor) -> None:
    """Neither equal values nor linear, quadratic or sign correlation beyond five standard errors."""
    assert (a == b).float().mean() < 1e-4
    bound = 5 / a.numel() ** 0.5
    for view in (lambda x: x, torch.abs, torch.sign):
        correlation = np.corrcoef(view(a.double()).numpy(), view(b.double()).numpy())[0, 1]
        assert abs(correlation) < bound


def test_noise_does_not_depend_on_how_much_is_drawn() -> None:
    z = draw(q=3, numel=1001)
    assert torch.equal(draw(q=2, numel=7), z[:2, :7])
    assert torch.equal(noise.randn(torch.tensor(1), torch.tensor(0), 0, 1, [7, 11]).flatten(), z[0, :77])


def test_steps_and_seeds_wrap() -> None:
    assert torch.equal(draw(step=-1, numel=9), draw(step=2**32 - 1, numel=9))
    assert torch.equal(draw(step=2**32 + 5, numel=9), draw(step=5, numel=9))
    assert not torch.equal(draw(seed=-1, numel=9), draw(seed=2**32 - 1, numel=9))


def test_normals_are_box_muller_of_the_words() -> None:
    x = [word[0].numpy() for word in noise.bits(torch.tensor(3), torch.tensor(4), 5, torch.tensor([6]), 1 << 16)]
    z = noise.normals(tuple(torch.tensor(word).reshape(1, -1) for word in x))[0].numpy().reshape(-1, 4)
    for first, (xa, xb) in ((0, (x[0], x[1])), (2, (x[2], x[3]))):
        radius = np.sqrt(-2 * np.log(((xa >> 8) + 1) * 2.0**-24))
        inside = (2 * ((xb >> 8) & 0x3FFFFF) - 0x3FFFFF) * (np.pi / 2**24)
        angle = (xb >> 30) * (np.pi / 2) + inside
        np.testing.assert_allclose(z[:, first], radius * np.cos(angle), atol=1e-6, rtol=0)
        np.testing.assert_allclose(z[:, first + 1], radius * np.sin(angle), atol=1e-6, rtol=0)


def test_extreme_words_stay_finite() -> None:
    words = [torch.tensor([[0, 0xFFFFFFFF]])] * 4
    z = noise.normals(tuple(words))
    assert z.isfinite().all()
    assert z.abs().max() == pytest.approx((2 * 24 * np.log(2)) ** 0.5 * np.cos(np.pi / 4), rel=1e-6)
    assert z[0, 4:].abs().max() == 0


FROZEN_BITS = [
    0x3ED84226,
    0xBE04104C,
    0xBF415FF3,
    0x3FD2777B,
    0x3F24B6C3,
    0xBE6B3411,
    0xBF895CE9,
    0x3F130A7D,
    0xBCB411E7,
    0x3F15DD3F,
]


def test_bits_are_frozen() -> None:
    """A change here changes every trajectory ever recorded: it needs a new contract version."""
    z = noise.randn(torch.tensor(-123456789012345), torch.tensor(41), 6, 2, [5])
    assert [int(bits) & 0xFFFFFFFF for bits in z.view(torch.int32).flatten()] == FROZEN_BITS
