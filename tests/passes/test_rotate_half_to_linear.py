from __future__ import annotations

import pytest
import torch
from torch.fx import Node

from prgec.passes.program import GraphProgram
from prgec.passes.rotate_half_to_linear import RotateHalfToLinear
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript

aten = torch.ops.aten
PASS = RotateHalfToLinear()
END = 9223372036854775807


def example(*, dynamic: bool = True) -> GraphProgram:
    """Queries and keys of one width: they share the matrix."""
    b = GraphBuilder(num_rows=2, dynamic=dynamic)
    return b.done(*[_rotated(b, b.heads(2, 4, name)) for name in ("q", "k")])


def _rotated(b: GraphBuilder, source: Node, *, half: int = 2, dim: int = 3, step: int = 1) -> Node:
    first = b.call(aten.slice.Tensor, source, dim, 0, half, step)
    second = b.call(aten.slice.Tensor, source, dim, half, END, step)
    return b.call(aten.cat.default, [b.call(aten.neg.default, second), first], -1 if dim == 3 else dim)


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 8] = aten.embedding(@q, tokens)
  %1: f32[2, T, 2, 4] = aten.view(%0, [2, -1, 2, 4])
  %2: f32[2, 2, T, 4] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, 2, T, 2] = aten.slice(%2, 3, 0, 2, 1)
  %4: f32[2, 2, T, 2] = aten.slice(%2, 3, 2, end, 1)
  %5: f32[2, 2, T, 2] = aten.neg(%4)
  %6: f32[2, 2, T, 4] = aten.cat([%5, %3], -1)
  %7: f32[2, T, 8] = aten.embedding(@k, tokens)
  %8: f32[2, T, 2, 4] = aten.view(%7, [2, -1, 2, 4])
  %9: f32[2, 2, T, 4] = aten.transpose.int(%8, 1, 2)
  %10: f32[2, 2, T, 2] = aten.slice(%9, 3, 0, 2, 1)
  %11: f32[2, 2, T, 2] = aten.slice(%9, 3, 2, end, 1)
  %12: f32[2, 2, T, 2] = aten.neg(%11)
  %13: f32[2, 2, T, 4] = aten.cat([%12, %10], -1)
  return %6, %13
--- rotate-half-to-linear: 2 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 8] = aten.embedding(@q, tokens)
  %1: f32[2, T, 2, 4] = aten.view(%0, [2, -1, 2, 4])
  %2: f32[2, 2, T, 4] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, 2, T, 4] = aten.linear(%2, @folded.c0)
  %4: f32[2, T, 8] = aten.embedding(@k, tokens)
  %5: f32[2, T, 2, 4] = aten.view(%4, [2, -1, 2, 4])
  %6: f32[2, 2, T, 4] = aten.transpose.int(%5, 1, 2)
  %7: f32[2, 2, T, 4] = aten.linear(%6, @folded.c0)
  return %3, %7
""",
    )


def test_miss_fixed_t() -> None:
    expect(
        transcript(example(dynamic=False), PASS),
        """\
graph(tokens: i64[2, 8], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, 8, 8] = aten.embedding(@q, tokens)
  %1: f32[2, 8, 2, 4] = aten.view(%0, [2, -1, 2, 4])
  %2: f32[2, 2, 8, 4] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, 2, 8, 2] = aten.slice(%2, 3, 0, 2, 1)
  %4: f32[2, 2, 8, 2] = aten.slice(%2, 3, 2, end, 1)
  %5: f32[2, 2, 8, 2] = aten.neg(%4)
  %6: f32[2, 2, 8, 4] = aten.cat([%5, %3], -1)
  %7: f32[2, 8, 8] = aten.embedding(@k, tokens)
  %8: f32[2, 8, 2, 4] = aten.view(%7, [2, -1, 2, 4])
  %9: f32[2, 2, 8, 4] = aten.transpose.int(%8, 1, 2)
  %10: f32[2, 2, 8, 2] = aten.slice(%9, 3, 0, 2, 1)
  %11: f32[2, 2, 8, 2] = aten.slice(%9, 3, 2, end, 1)
  %12: f32[2, 2, 8, 2] = aten.neg(%11)
  %13: f32[2, 2, 8, 4] = aten.cat([%12, %10], -1)
  return %6, %13
--- rotate-half-to-linear: 0 hits
(same)
""",
    )


@pytest.mark.parametrize("spoil", ["quarter", "strided", "other_axis", "two_sources", "swapped", "sign", "three_parts"])
def test_miss(spoil: str) -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    source = b.heads(2, 4, "q")
    if spoil == "quarter":
        node = _rotated(b, source, half=1)
    elif spoil == "strided":
        node = _rotated(b, source, step=2)
    elif spoil == "other_axis":
        node = _rotated(b, source, half=1, dim=1)
    else:
        other = b.heads(2, 4, "k") if spoil == "two_sources" else source
        first, second = b.call(aten.slice.Tensor, other, 3, 0, 2), b.call(aten.slice.Tensor, source, 3, 2, END)
        parts = {
            "two_sources": [b.call(aten.neg.default, second), first],
            "swapped": [b.call(aten.neg.default, first), second],
            "sign": [second, first],
            "three_parts": [b.call(aten.neg.default, second), first, first],
        }[spoil]
        node = b.call(aten.cat.default, parts, -1)
    assert not run_pass(b.done(node), PASS).changed
