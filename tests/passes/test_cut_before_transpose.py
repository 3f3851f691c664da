from __future__ import annotations

import operator

import pytest
import torch

from prgec.passes.cut_before_transpose import CutBeforeTranspose
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript

aten = torch.ops.aten
PASS = CutBeforeTranspose()


def example(*, dynamic: bool = True) -> GraphProgram:
    """Three parts of a dimension that was the last one; one of them is not read."""
    b = GraphBuilder(num_rows=2, dynamic=dynamic)
    swapped = b.call(aten.transpose.int, b.hidden(12), -1, -2)
    parts = b.call(aten.chunk.default, swapped, 3, -2)
    return b.done(*[b.call(operator.getitem, parts, index) for index in (0, 2)])


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 12] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, 12, T] = aten.transpose.int(%0, -1, -2)
  %2: (f32[2, 4, T], f32[2, 4, T], f32[2, 4, T]) = aten.chunk(%1, 3, -2)
  %3: f32[2, 4, T] = getitem(%2, 0)
  %4: f32[2, 4, T] = getitem(%2, 2)
  return %3, %4
--- cut-before-transpose: 1 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 12] = aten.embedding(@embed.weight, tokens)
  %1: (f32[2, T, 4], f32[2, T, 4], f32[2, T, 4]) = aten.chunk(%0, 3, -1)
  %2: f32[2, T, 4] = getitem(%1, 0)
  %3: f32[2, 4, T] = aten.transpose.int(%2, -2, -1)
  %4: f32[2, T, 4] = getitem(%1, 2)
  %5: f32[2, 4, T] = aten.transpose.int(%4, -2, -1)
  return %3, %5
""",
    )


@pytest.mark.parametrize(
    ("op", "sizes"), [(aten.split_with_sizes.default, [5, 7]), (aten.split.Tensor, 6), (aten.chunk.default, 2)]
)
def test_hit_every_kind_of_split(op: torch._ops.OpOverload, sizes: object) -> None:
    b = GraphBuilder(num_rows=2)
    parts = b.call(op, b.call(aten.transpose.int, b.hidden(12), 2, 1), sizes, 1)
    program = b.done(b.call(operator.getitem, parts, 1))
    rows = row_inputs(program)
    before = program.module(*rows)
    assert run_pass(program, PASS).hits == 1
    torch.testing.assert_close(program.module(*rows), before, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("spoil", ["last", "other swap", "no swap"])
def test_miss(spoil: str) -> None:
    b = GraphBuilder(num_rows=2)
    hidden = b.call(aten.view.default, b.hidden(12), [2, -1, 6, 2])
    source, dim = {
        "last": (b.call(aten.transpose.int, hidden, 2, 3), 3),
        "other swap": (b.call(aten.transpose.int, hidden, 1, 2), 2),
        "no swap": (hidden, 2),
    }[spoil]
    parts = b.call(aten.chunk.default, source, 2, dim)
    assert not run_pass(b.done(b.call(operator.getitem, parts, 0)), PASS).changed
