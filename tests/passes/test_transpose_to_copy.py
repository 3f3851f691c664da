from __future__ import annotations

import torch

from prgec.passes.program import GraphProgram
from prgec.passes.transpose_to_copy import TransposeToCopy
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript

aten = torch.ops.aten
PASS = TransposeToCopy()


def example() -> GraphProgram:
    """A transposition two ops read, and a permutation of the same tensor."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    hidden = b.hidden()
    swapped = b.call(aten.transpose.int, hidden, 1, 2)
    last = b.call(aten.permute.default, hidden, [2, 0, 1])
    return b.done(b.call(aten.neg.default, swapped), b.call(aten.abs.default, swapped), last)


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, 4, T] = aten.transpose.int(%0, 1, 2)
  %2: f32[4, 2, T] = aten.permute(%0, [2, 0, 1])
  %3: f32[2, 4, T] = aten.neg(%1)
  %4: f32[2, 4, T] = aten.abs(%1)
  return %3, %4, %2
--- transpose-to-copy: 2 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, 4, T] = aten.transpose.int(%0, 1, 2)
  %2: f32[2, 4, T] = aten.clone(%1, memory_format=torch.contiguous_format)
  %3: f32[4, 2, T] = aten.permute(%0, [2, 0, 1])
  %4: f32[4, 2, T] = aten.clone(%3, memory_format=torch.contiguous_format)
  %5: f32[2, 4, T] = aten.neg(%2)
  %6: f32[2, 4, T] = aten.abs(%2)
  return %5, %6, %4
""",
    )


def test_hit_everything_after_it_is_contiguous() -> None:
    program = example()
    run_pass(program, PASS)
    strides = [node.meta["val"].stride()[-1] for node in program.calls(aten.clone.default)]
    assert strides == [1, 1]


def test_miss_fixed_t_and_constants() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    turned = b.call(aten.transpose.int, b.weight("w", 4, 3), 0, 1)
    expect(
        transcript(b.done(b.call(aten.linear.default, b.hidden(), turned)), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[3, 4] = aten.transpose.int(@w, 0, 1)
  %1: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %2: f32[2, T, 3] = aten.linear(%1, %0)
  return %2
--- transpose-to-copy: 0 hits
(same)
""",
    )
    b = GraphBuilder(num_rows=2)
    assert not run_pass(b.done(b.call(aten.transpose.int, b.hidden(), 1, 2)), PASS).changed


def test_miss_transposition_that_is_copied_already() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    turned = b.call(aten.transpose.int, b.hidden(), 1, 2)
    copy = b.call(aten.clone.default, turned, memory_format=torch.contiguous_format)
    assert not run_pass(b.done(copy), PASS).changed
