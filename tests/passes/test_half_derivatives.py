"""Derivatives that hold in 16 bits: their constants have a place there, and they hold at the ends of its range."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.passes.leaves import differentiate, program_of
from tests.passes.parity import run

aten = torch.ops.aten
# The smallest number that f16 has, the smallest with all its bits, numbers about 1, and large ones.
_SIZES = (0.0, 2.0**-24, 2.0**-14, 2.0**-8, 0.03, 0.4, 0.999, 1.0, 1.001, 3.0, 200.0)
_VALUES = [*_SIZES, *(-each for each in _SIZES[1:])]


@pytest.mark.parametrize(
    ("op", "arguments", "smallest"),
    [(aten.relu.default, (), 2.0**-14), (aten.clamp.default, (-1.0, 1.0), 0.0), (aten.gelu.default, (), 0.0)],
    ids=["relu", "clamp", "gelu"],
)
def test_equals_autograd(op: Callable[..., Tensor], arguments: tuple[float, ...], smallest: float) -> None:
    values = torch.tensor([each for each in _VALUES if each == 0.0 or abs(each) >= smallest], dtype=torch.float16)
    exact = values.double().requires_grad_()
    op(exact, *arguments).sum().backward()
    program = program_of(lambda b: b.call(op, b.leaf(len(values)), *arguments))
    differentiate(program, half=True)
    rows = [
        torch.zeros([int(n) for n in node.meta["val"].shape], dtype=torch.int64) for node in program.placeholders()[:3]
    ]
    (found,) = run(program, (*rows, values, torch.ones_like(values)))
    assert found.dtype == torch.float16 and exact.grad is not None
    expected = exact.grad.where(values.abs() != 1.0, found.double()) if arguments else exact.grad
    assert float((found.double() - expected).abs().max()) < 0.01


@pytest.mark.parametrize("op", [aten.relu.default, aten.gelu.default])
def test_constants_have_a_place_in_f16(op: Callable[..., Tensor]) -> None:
    program = program_of(lambda b: b.call(op, b.leaf(3)))
    differentiate(program, half=True)
    numbers = [each for node in program.graph.nodes for each in node.args if isinstance(each, float) and each]
    assert numbers
    for number in numbers:
        narrow = float(torch.tensor(number, dtype=torch.float16))
        assert narrow == pytest.approx(number, rel=1e-3)
