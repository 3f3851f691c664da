"""Equal calls are computed once, and nothing that differs in its result is taken for equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from prgec.passes.printer import print_program
from prgec.passes.rewrite import Rewriter
from tests.passes.builder import GraphBuilder

aten = torch.ops.aten


def test_equal_calls_have_one_value() -> None:
    b = GraphBuilder(dynamic=True)
    one, other = (b.hidden(name=name) for name in ("one.weight", "other.weight"))
    assert one.args[0].meta["val"] is not other.args[0].meta["val"]  # type: ignore[union-attr]
    assert one.meta["val"] is other.meta["val"]
    sums = [b.call(aten.add.Tensor, each, 1.0).meta["val"] for each in (one, other)]
    assert sums[0] is sums[1]
    assert sums[0].shape[1].node.expr == b.tokens.meta["val"].shape[1].node.expr


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((aten.mul.Tensor, 1), (aten.mul.Tensor, 1.0)),
        ((aten.mul.Tensor, True), (aten.mul.Tensor, 1)),
        ((aten.sum.dim_IntList, [1]), (aten.sum.dim_IntList, [2])),
        ((aten.sum.dim_IntList, [1]), (aten.sum.dim_IntList, [1], True)),
        ((aten.to.dtype, torch.int32), (aten.to.dtype, torch.int64)),
        ((aten.transpose.int, 0, 1), (aten.transpose_copy.int, 0, 1)),
    ],
)
def test_calls_that_differ_have_values_of_their_own(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    b = GraphBuilder(dynamic=True)
    source = b.call(aten.eq.Scalar, b.call(aten.unsqueeze.default, b.tokens, -1), 0)
    seen = [b.call(op, source, *args).meta["val"] for op, *args in (one, other)]
    alone = [op(torch.zeros(4, 8, 1, dtype=torch.bool), *args) for op, *args in (one, other)]
    assert [each.dtype for each in seen] == [each.dtype for each in alone]
    assert [each.dim() for each in seen] == [each.dim() for each in alone]
    assert [each.is_contiguous() for each in seen] == [each.is_contiguous() for each in alone]
    assert seen[0] is not seen[1]


def test_strides_tell_calls_apart() -> None:
    b = GraphBuilder(dynamic=True)
    heads = b.heads(2, 4, "k.weight")
    copied = b.call(aten.clone.default, heads, memory_format=torch.contiguous_format)
    doubled = [b.call(aten.mul.Tensor, each, 2.0).meta["val"] for each in (heads, copied)]
    assert doubled[0].shape == doubled[1].shape
    assert [each.is_contiguous() for each in doubled] == [False, True]


def test_a_size_that_data_tell_is_another_one_in_every_call() -> None:
    b = GraphBuilder()
    counts = [b.call(aten.nonzero.default, each).meta["val"].shape[0] for each in (b.label_pos, b.targets)]
    assert counts[0].node.expr != counts[1].node.expr


def test_inline_tells_arguments_of_one_shape_apart() -> None:
    b = GraphBuilder(dynamic=True)
    one, other = (b.call(aten.neg.default, b.hidden(name=name)) for name in ("one.weight", "other.weight"))
    rewriter = Rewriter(b.program, "test")
    with rewriter.before(b.program.graph.output_node()):
        found = rewriter.inline(_difference, one, other)
    assert print_program(b.done(found)).splitlines()[-2].endswith("= aten.sub(%1, %3)")


def _difference(one: Tensor, other: Tensor) -> Tensor:
    return one - other
