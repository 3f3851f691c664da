"""The compiled kernels inside the stock ExecuTorch runtime, bit for bit against the eager reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prgec.runtime_ops import reference


class Update(torch.nn.Module):
    """Owns the master of one site; returns what an operator makes of it, and the master after the update."""

    def __init__(self, rank: int, out: int, site: int = 5, op: str = "dual_update") -> None:
        super().__init__()
        self.site, self.op = site, op
        self.register_buffer("master", torch.zeros(rank, out))

    def forward(self, g: Any, lr: Any, eps: Any, seed: Any, step: Any) -> tuple[torch.Tensor, torch.Tensor]:
        made = getattr(torch.ops.prge, self.op)(self.master, g, lr, eps, seed, step, self.site)
        return made, self.master.clone()


class Noise(torch.nn.Module):
    def __init__(self, q: int, shape: list[int], site: int = 7) -> None:
        super().__init__()
        self.q, self.shape, self.site = q, shape, site

    def forward(self, seed: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return torch.ops.prge.randn(seed, step, self.site, self.q, self.shape)


def step_args(q: int, step: int, eps: float = 0.011, zero_g: bool = False) -> tuple[torch.Tensor, ...]:
    g = torch.zeros(q) if zero_g else torch.randn(q, generator=torch.Generator().manual_seed(step + 10))
    return g, torch.tensor(0.37), torch.tensor(eps), torch.tensor(-123456789012345), torch.tensor(step)


# One element, odd sizes, both sides of the 256-element tile, and enough tiles for several threads.
@pytest.mark.parametrize(("rank", "out", "q"), [(1, 1, 3), (3, 5, 1), (1, 255, 2), (1, 257, 8), (16, 2051, 4)])
@pytest.mark.parametrize("op", ["dual_update", "perturbation"])
def test_updates_equal_eager(compiled: Any, rank: int, out: int, q: int, op: str) -> None:
    module = Update(rank, out, op=op)
    execute = compiled(module, step_args(q, 0))
    schedule = [step_args(q, 0, zero_g=True), step_args(q, 1), step_args(q, 2), step_args(q, 3, eps=0.0)]
    for args in [*schedule, step_args(q, 4, zero_g=True), step_args(q, -1), step_args(q, 2**32)]:
        made, master = execute(*args)
        expected, expected_master = module(*args)
        assert_same_bits(made, expected)
        assert_same_bits(master, expected_master)
    assert master.abs().max() > 0


def test_non_finite_g_reaches_master(compiled: Any) -> None:
    execute = compiled(Update(2, 3), step_args(1, 0))
    args = step_args(1, 1)
    args[0][0] = float("nan")
    assert execute(*args)[1].isnan().all()


@pytest.mark.parametrize(("q", "shape"), [(1, [1]), (3, [5, 13]), (2, [257]), (4, [64, 2, 129]), (2, [])])
def test_randn_equals_eager(compiled: Any, q: int, shape: list[int]) -> None:
    module = Noise(q, shape)
    execute = compiled(module, (torch.tensor(0), torch.tensor(0)))
    for seed, step in ((1, 0), (-5, -1), (2**40 + 3, 2**33 + 1), (2**63 - 1, 2**31)):
        args = torch.tensor(seed), torch.tensor(step)
        assert_same_bits(execute(*args)[0], module(*args))


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.shape == expected.shape
    different = actual.view(torch.int32) != expected.view(torch.int32)
    assert not different.any(), f"{int(different.sum())} of {expected.numel()} elements differ"


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, torch.zeros(2, dtype=torch.float64), "master must be float32[r, out] and g float32[q] with q >= 1"),
        (1, torch.zeros(1), "lr and eps must be float32 of rank 0"),
        (2, torch.tensor(1), "lr and eps must be float32 of rank 0"),
        (3, torch.tensor(1, dtype=torch.int32), "seed and step must be int64 of rank 0"),
    ],
)
@pytest.mark.parametrize("op", ["dual_update", "perturbation"])
def test_update_kernels_refuse(
    compiled: Any, monkeypatch: Any, capfd: Any, position: int, value: torch.Tensor, message: str, op: str
) -> None:
    args = list(step_args(2, 0))
    args[position] = value
    refuse_at_run_time(compiled, monkeypatch, Update(3, 5, op=op), tuple(args))
    assert f"prge::{op}: {message}" in "".join(capfd.readouterr())


def test_randn_kernel_refuses_a_site_beyond_32_bits(compiled: Any, monkeypatch: Any, capfd: Any) -> None:
    refuse_at_run_time(compiled, monkeypatch, Noise(1, [4], site=2**32), (torch.tensor(0), torch.tensor(0)))
    assert "prge::randn: site is outside [0, 2^32)" in "".join(capfd.readouterr())


def refuse_at_run_time(compiled: Any, monkeypatch: Any, module: Any, args: tuple[torch.Tensor, ...]) -> None:
    """Compile with the checks of the fake kernels off, so that only the compiled kernel is left to refuse."""
    for check in ("check_randn", "check_dual_update"):
        monkeypatch.setattr(reference, check, lambda *_: None)
    execute = compiled(module, args)
    with pytest.raises(RuntimeError):
        execute(*args)
