"""Every derivative rule in f64 against PyTorch's, on graphs of one or a few ops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from prgec.passes.derivatives import RULES
from prgec.passes.program import GraphProgram
from prgec.passes.verify import verify
from tests.passes.builder import seq_lens
from tests.passes.derivative_cases import CASES, cat_over_t
from tests.passes.leaves import WIDTH, MakeNode, differentiate, program_of
from tests.passes.parity import run

aten = torch.ops.aten


def test_every_rule_is_tested() -> None:
    assert {op for op, _, _ in CASES} == RULES.keys()


@pytest.mark.parametrize(("op", "make"), [pytest.param(op, make, id=f"{op}-{name}") for op, name, make in CASES])
def test_equals_autograd(op: object, make: MakeNode) -> None:
    plain, program = program_of(make), program_of(make)
    assert any(plain.calls(op))  # type: ignore[arg-type]
    differentiate(program)
    assert verify(program) == []
    for length in seq_lens(program):
        values = _values(program, length)
        plain.module.double()
        leaves = [value.requires_grad_() for value in values[3:-1]]
        expected = torch.autograd.grad(plain.module(*values[:-1])[0], leaves, values[-1])
        found = run(program, tuple(values))
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape and ours.dtype == torch.float64
            assert float(theirs.norm()) > 0
            assert float((ours - theirs).norm() / theirs.norm()) < 1e-9


def test_parts_of_a_gradient_are_products_where_t_varies() -> None:
    """No delegate slices a shape that varies: slices would cut the program in several."""
    program = program_of(cat_over_t)
    differentiate(program)
    assert not any(program.calls(aten.slice.Tensor))


def test_a_transposed_weight_lies_as_its_shape_says() -> None:
    """That of a weight with one column has its strides, which a lowering believes."""
    program = program_of(lambda b: b.call(aten.linear.default, b.leaf_T(1), b.constant(5, 1)))
    differentiate(program)
    copies = [value for name, value in program.module.named_buffers() if "transposed" in name]
    assert [(tuple(each.shape), each.stride()) for each in copies] == [((1, 5), (5, 1))]


def test_no_weight_is_another_one_with_its_dimensions_swapped() -> None:
    """Bytes are the name of a packed weight: of one row, a transposed copy would have the same."""
    program = program_of(lambda b: b.call(aten.linear.default, b.leaf_T(), b.constant(1, WIDTH)))
    differentiate(program)
    copies = [tuple(value.shape) for name, value in program.module.named_buffers() if "transposed" in name]
    assert copies == [(WIDTH,)] and not list(program.calls(aten.linear.default))


def _values(program: GraphProgram, length: int) -> list[Tensor]:
    """Inputs of a call; all but integers are f64 normals."""
    generator = torch.Generator().manual_seed(length)
    values = []
    for node in program.placeholders():
        like = node.meta["val"]
        sizes = [size if isinstance(size, int) else _size(size, length) for size in like.shape]
        if like.dtype == torch.int64:
            values.append(torch.zeros(sizes, dtype=torch.int64))
        else:
            values.append(torch.randn(sizes, generator=generator, dtype=torch.float64))
    return values


def _size(size: torch.SymInt, length: int) -> int:
    """The value of c*T."""
    (symbol,) = size.node.expr.free_symbols
    return int(size.node.expr.subs(symbol, length))
