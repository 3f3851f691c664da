"""The sum over the calls of one step: the operator against numbers, its kernel bit for bit against the reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from prgec.runtime_ops import library as _registers_prge_ops  # noqa: F401 - torch.ops.prge exists only after it
from tests.runtime_ops.test_kernels import assert_same_bits
from tests.runtime_ops.test_library import error_of

accumulate = torch.ops.prge.accumulate
# A row of losses, one element, and both sides of what one thread takes.
SHAPES = ((5,), (1, 1), (3, 7), (5, 3277))
# Three calls of a step, a step of one, two calls of a step nobody finished, and two of the next.
CALLS = ((0, 0), (1, 0), (2, 1), (0, 1), (0, 0), (1, 0), (0, 0), (1, 1))


class Totals(torch.nn.Module):
    """Several totals; returns what is handed on of each, and the totals."""

    def __init__(self) -> None:
        super().__init__()
        for index, shape in enumerate(SHAPES):
            self.register_buffer(f"total{index}", torch.zeros(shape))

    def forward(self, call: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        totals = [getattr(self, f"total{index}") for index in range(len(SHAPES))]
        means = [accumulate(total, value, call) for total, value in zip(totals, values, strict=True)]
        return *means, *(total.clone() for total in totals)


def values_of(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def test_hands_on_the_mean_in_the_last_call_of_a_step() -> None:
    total = torch.full((4,), math.nan)  # whatever was there before
    first, second, third = (torch.randn(4, generator=torch.Generator().manual_seed(n)) for n in range(3))
    for before, value in enumerate((first, second)):
        assert accumulate(total, value, torch.tensor([before, 0])).eq(math.inf).all()
    mean = accumulate(total, third, torch.tensor([2, 1]))
    expected = np.mean([each.double().numpy() for each in (first, second, third)], axis=0)
    np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-6, atol=1e-7)
    assert_same_bits(accumulate(total, first, torch.tensor([0, 1])), first)


def test_a_value_that_is_no_number_stays_with_its_step() -> None:
    total, good = torch.zeros(3), torch.ones(3)
    accumulate(total, torch.tensor([1.0, math.nan, math.inf]), torch.tensor([0, 0]))
    assert accumulate(total, good, torch.tensor([1, 1])).isfinite().tolist() == [True, False, False]
    assert torch.equal(accumulate(total, good, torch.tensor([0, 1])), good)


def test_kernel_equals_eager(compiled: Any) -> None:
    module = Totals()
    execute = compiled(module, (torch.tensor([0, 1]), *values_of(0)))
    for step, call in enumerate(CALLS):
        args = torch.tensor(call), *values_of(step)
        for ours, theirs in zip(execute(*args), module(*args), strict=True):
            assert_same_bits(ours, theirs)


def test_opcheck() -> None:
    torch.library.opcheck(accumulate.default, (torch.rand(3, 5), torch.rand(3, 5), torch.tensor([1, 1])))


def test_fake_kernel_agrees_with_real_shapes() -> None:
    with FakeTensorMode():
        found = accumulate(torch.ones(3, 5), torch.ones(3, 5), torch.tensor([0, 1]))
    assert (found.shape, found.dtype) == ((3, 5), torch.float32)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("total", torch.zeros(3, 5).double(), "total is float64[3, 5]; expected float32[3, 5]"),
        ("value", torch.zeros(5, 3), "value is float32[5, 3]; expected float32[3, 5]"),
        ("value", torch.zeros(3, 5).int(), "value is int32[3, 5]; expected float32[3, 5]"),
        ("call", torch.ones(2), "call is float32[2]; expected int64[2]"),
        ("call", torch.tensor([0]), "call is int64[1]; expected int64[2]"),
    ],
)
def test_refuses(name: str, value: Tensor, message: str) -> None:
    args = {"total": torch.zeros(3, 5), "value": torch.zeros(3, 5), "call": torch.tensor([0, 1]), name: value}
    assert error_of(lambda: accumulate(**args)) == f"prge::accumulate: {message}"


def test_kernel_refuses(compiled: Any, capfd: Any) -> None:
    """Fake kernels take anything, so that only the compiled one is left to refuse."""
    args = torch.tensor([0, 1]), *values_of(0)[:-1], torch.ones(3)
    with pytest.raises(RuntimeError):
        compiled(Totals(), args)(*args)
    assert "prge::accumulate: total, value and out must be float32 of one shape" in "".join(capfd.readouterr())
