from __future__ import annotations

import torch

from prgec.passes.program import GraphProgram
from prgec.passes.reshape_to_view import ReshapeToView
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, transcript
from tests.passes.parity import assert_parity

aten = torch.ops.aten
PASS = ReshapeToView()


def example() -> GraphProgram:
    """Attention output: heads come back together, which moves memory; splitting the result again does not."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    mixed = b.call(aten.clone.default, b.heads(2, 3, "q"), memory_format=torch.contiguous_format)
    merged = b.call(aten.reshape.default, b.call(aten.transpose.int, mixed, 1, 2), [2, -1, 6])
    return b.done(b.call(aten.reshape.default, merged, [4, -1, 3]))


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 6] = aten.embedding(@q, tokens)
  %1: f32[2, T, 2, 3] = aten.view(%0, [2, -1, 2, 3])
  %2: f32[2, 2, T, 3] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, 2, T, 3] = aten.clone(%2, memory_format=torch.contiguous_format)
  %4: f32[2, T, 2, 3] = aten.transpose.int(%3, 1, 2)
  %5: f32[2, T, 6] = aten.reshape(%4, [2, -1, 6])
  %6: f32[4, T, 3] = aten.reshape(%5, [4, -1, 3])
  return %6
--- reshape-to-view: 2 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 6] = aten.embedding(@q, tokens)
  %1: f32[2, T, 2, 3] = aten.view(%0, [2, -1, 2, 3])
  %2: f32[2, 2, T, 3] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, 2, T, 3] = aten.clone(%2, memory_format=torch.contiguous_format)
  %4: f32[2, T, 2, 3] = aten.transpose.int(%3, 1, 2)
  %5: f32[2, T, 2, 3] = aten.clone(%4, memory_format=torch.contiguous_format)
  %6: f32[2, T, 6] = aten.view(%5, [2, -1, 6])
  %7: f32[4, T, 3] = aten.view(%6, [4, -1, 3])
  return %7
""",
    )


def test_hit_of_a_part_of_a_row_copies_it() -> None:
    """Memory in order but with gaps cannot be viewed as one dimension."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    part = b.call(aten.slice.Tensor, b.hidden(4), 2, 0, 3)
    program = b.done(b.call(aten.reshape.default, part, [2, -1]))
    assert_parity(program, PASS)
    assert len(list(program.calls(aten.clone.default))) == 1


def test_hit_knows_the_memory_order_left_by_earlier_rewrites() -> None:
    """The value of a node is recomputed when its source now comes in another memory order."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    heads = b.heads(2, 3, "q")
    copied = b.call(aten.clone.default, heads, memory_format=torch.contiguous_format)
    negated = b.call(aten.neg.default, copied)
    program = b.done(b.call(aten.reshape.default, negated, [4, -1, 3]))
    copied.replace_all_uses_with(heads)
    program.finish()
    assert_parity(program, PASS)
    assert len(list(program.calls(aten.clone.default))) == 1


def test_miss_fixed_t() -> None:
    b = GraphBuilder(num_rows=2)
    program = b.done(b.call(aten.reshape.default, b.heads(2, 3, "q"), [2, 2, 24]))
    expect(
        transcript(program, PASS),
        """\
graph(tokens: i64[2, 8], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, 8, 6] = aten.embedding(@q, tokens)
  %1: f32[2, 8, 2, 3] = aten.view(%0, [2, -1, 2, 3])
  %2: f32[2, 2, 8, 3] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, 2, 24] = aten.reshape(%2, [2, 2, 24])
  return %3
--- reshape-to-view: 0 hits
(same)
""",
    )
