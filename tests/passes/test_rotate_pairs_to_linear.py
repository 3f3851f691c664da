from __future__ import annotations

import pytest
import torch
from torch.fx import Node

from prgec.passes.program import GraphProgram
from prgec.passes.rotate_pairs_to_linear import RotatePairsToLinear
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript

aten = torch.ops.aten
PASS = RotatePairsToLinear()
END = 9223372036854775807


def example(*, dynamic: bool = True) -> GraphProgram:
    """Queries and keys of one width: they share the matrix."""
    b = GraphBuilder(num_rows=2, dynamic=dynamic)
    return b.done(*[_rotated(b, b.heads(2, 4, name)) for name in ("q", "k")])


def _rotated(b: GraphBuilder, source: Node, *, first: int = 0, second: int = 1, step: int = 2) -> Node:
    even = b.call(aten.slice.Tensor, source, 3, first, END, step)
    odd = b.call(aten.slice.Tensor, source, 3, second, END, step)
    pairs = b.call(aten.stack.default, [b.call(aten.neg.default, odd), even], -1)
    return b.call(aten.view.default, pairs, [2, 2, -1, 4])


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 8] = aten.embedding(@q, tokens)
  %1: f32[2, T, 2, 4] = aten.view(%0, [2, -1, 2, 4])
  %2: f32[2, 2, T, 4] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, 2, T, 2] = aten.slice(%2, 3, 0, end, 2)
  %4: f32[2, 2, T, 2] = aten.slice(%2, 3, 1, end, 2)
  %5: f32[2, 2, T, 2] = aten.neg(%4)
  %6: f32[2, 2, T, 2, 2] = aten.stack([%5, %3], -1)
  %7: f32[2, 2, T, 4] = aten.view(%6, [2, 2, -1, 4])
  %8: f32[2, T, 8] = aten.embedding(@k, tokens)
  %9: f32[2, T, 2, 4] = aten.view(%8, [2, -1, 2, 4])
  %10: f32[2, 2, T, 4] = aten.transpose.int(%9, 1, 2)
  %11: f32[2, 2, T, 2] = aten.slice(%10, 3, 0, end, 2)
  %12: f32[2, 2, T, 2] = aten.slice(%10, 3, 1, end, 2)
  %13: f32[2, 2, T, 2] = aten.neg(%12)
  %14: f32[2, 2, T, 2, 2] = aten.stack([%13, %11], -1)
  %15: f32[2, 2, T, 4] = aten.view(%14, [2, 2, -1, 4])
  return %7, %15
--- rotate-pairs-to-linear: 2 hits
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


def test_hit_fixed_t() -> None:
    assert run_pass(example(dynamic=False), PASS).hits == 2


@pytest.mark.parametrize(
    "spoil", ["halves", "swapped", "other_axis", "two_sources", "sign", "three_parts", "another_view"]
)
def test_miss(spoil: str) -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    source = b.heads(2, 4, "q")
    other = b.heads(2, 4, "k") if spoil == "two_sources" else source
    bounds = {"halves": (0, 2, 1), "swapped": (1, 0, 2)}.get(spoil, (0, 1, 2))
    end = 2 if spoil == "halves" else END
    even = b.call(aten.slice.Tensor, other, 3, bounds[0], end, bounds[2])
    odd = b.call(aten.slice.Tensor, source, 3, bounds[1], END, bounds[2])
    turned = odd if spoil == "sign" else b.call(aten.neg.default, odd)
    parts = [turned, even, even] if spoil == "three_parts" else [turned, even]
    pairs = b.call(aten.stack.default, parts, 3 if spoil == "other_axis" else -1)
    sizes = [2, 2, -1, 6] if spoil == "three_parts" else [2, -1, 8] if spoil == "another_view" else [2, 2, -1, 4]
    assert not run_pass(b.done(b.call(aten.view.default, pairs, sizes)), PASS).changed
