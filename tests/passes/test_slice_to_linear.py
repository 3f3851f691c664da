from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import Node

from prgec.passes.program import GraphProgram
from prgec.passes.slice_to_linear import SliceToLinear
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript

aten = torch.ops.aten
PASS = SliceToLinear()
END = 9223372036854775807


def example(*, dynamic: bool = True) -> GraphProgram:
    """The rotated part of two tensors of heads, which share a matrix, and the rest of one; a split, a chunk."""
    b = GraphBuilder(num_rows=2, dynamic=dynamic)
    q, k = b.heads(2, 5, "q"), b.heads(2, 5, "k")
    cuts = [b.call(aten.slice.Tensor, each, 3, 0, 2) for each in (q, k)]
    rest = b.call(aten.slice.Tensor, q, -1, 2, END)
    sizes = b.call(aten.split_with_sizes.default, k, [1, 4], 3)
    halves = b.call(aten.chunk.default, b.hidden(4), 2, -1)
    return b.done(*cuts, rest, b.call(operator.getitem, sizes, 1), b.call(operator.getitem, halves, 0))


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 10] = aten.embedding(@q, tokens)
  %1: f32[2, T, 2, 5] = aten.view(%0, [2, -1, 2, 5])
  %2: f32[2, 2, T, 5] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, T, 10] = aten.embedding(@k, tokens)
  %4: f32[2, T, 2, 5] = aten.view(%3, [2, -1, 2, 5])
  %5: f32[2, 2, T, 5] = aten.transpose.int(%4, 1, 2)
  %6: f32[2, 2, T, 2] = aten.slice(%2, 3, 0, 2)
  %7: f32[2, 2, T, 2] = aten.slice(%5, 3, 0, 2)
  %8: f32[2, 2, T, 3] = aten.slice(%2, -1, 2, end)
  %9: (f32[2, 2, T, 1], f32[2, 2, T, 4]) = aten.split_with_sizes(%5, [1, 4], 3)
  %10: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %11: (f32[2, T, 2], f32[2, T, 2]) = aten.chunk(%10, 2, -1)
  %12: f32[2, 2, T, 4] = getitem(%9, 1)
  %13: f32[2, T, 2] = getitem(%11, 0)
  return %6, %7, %8, %12, %13
--- slice-to-linear: 5 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 10] = aten.embedding(@q, tokens)
  %1: f32[2, T, 2, 5] = aten.view(%0, [2, -1, 2, 5])
  %2: f32[2, 2, T, 5] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, T, 10] = aten.embedding(@k, tokens)
  %4: f32[2, T, 2, 5] = aten.view(%3, [2, -1, 2, 5])
  %5: f32[2, 2, T, 5] = aten.transpose.int(%4, 1, 2)
  %6: f32[2, 2, T, 2] = aten.linear(%2, @folded.c0)
  %7: f32[2, 2, T, 2] = aten.linear(%5, @folded.c0)
  %8: f32[2, 2, T, 3] = aten.linear(%2, @folded.c1)
  %9: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %10: f32[2, 2, T, 4] = aten.linear(%5, @folded.c2)
  %11: f32[2, T, 2] = aten.linear(%9, @folded.c3)
  return %6, %7, %8, %10, %11
""",
    )


@pytest.mark.parametrize("spoil", ["fixed_t", "other_axis", "strided", "table", "integers", "width_depends_on_t"])
def test_miss(spoil: str) -> None:
    b = GraphBuilder(num_rows=2, dynamic=spoil != "fixed_t")
    source: Node = b.heads(2, 4, "q")
    dim, end, step = 3, 2, 1
    if spoil == "other_axis":
        dim, end = 1, 1
    elif spoil == "strided":
        step, end = 2, 4
    elif spoil == "table":
        source = b.call(aten.slice.Tensor, b.weight("table", 1, 1, 9, 4), 2, 0, b.length())
    elif spoil == "integers":
        source = b.call(aten.to.dtype, source, torch.int64)
    elif spoil == "width_depends_on_t":
        source = b.call(aten.transpose.int, source, 2, 3)
    assert not run_pass(b.done(b.call(aten.slice.Tensor, source, dim, 0, end, step)), PASS).changed
