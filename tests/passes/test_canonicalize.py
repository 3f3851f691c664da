from __future__ import annotations

import pytest
import torch

from prgec.passes.canonicalize import Canonicalize
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript

aten = torch.ops.aten
PASS = Canonicalize()


def example() -> GraphProgram:
    b = GraphBuilder(dynamic=True)
    length = b.length()
    hidden = b.hidden(8)
    cast = b.call(aten.to.dtype, hidden, torch.float32)
    alias = b.call(aten.alias.default, cast)
    kept = b.call(aten.dropout.default, alias, 0.5, False)
    full = b.call(aten.slice.Tensor, kept, 1, 0, length)
    return b.done(b.call(aten.view.default, full, [4, length, -1, 2]))


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: size = aten.sym_size.int(tokens, 1)
  %1: f32[4, T, 8] = aten.embedding(@embed.weight, tokens)
  %2: f32[4, T, 8] = aten.to.dtype(%1, f32)
  %3: f32[4, T, 8] = aten.alias(%2)
  %4: f32[4, T, 8] = aten.dropout(%3, 0.5, False)
  %5: f32[4, T, 8] = aten.slice(%4, 1, 0, %0)
  %6: f32[4, T, 4, 2] = aten.view(%5, [4, %0, -1, 2])
  return %6
--- canonicalize: 6 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 8] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 4, 2] = aten.view(%0, [4, -1, 4, 2])
  return %1
""",
    )


def test_hit_expand_infers_t() -> None:
    b = GraphBuilder(dynamic=True)
    wide = b.call(aten.expand.default, b.call(aten.unsqueeze.default, b.hidden(), 1), [4, 2, b.length(), 4])
    expect(
        transcript(b.done(wide), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, 1, T, 4] = aten.unsqueeze(%0, 1)
  %2: size = aten.sym_size.int(tokens, 1)
  %3: f32[4, 2, T, 4] = aten.expand(%1, [4, 2, %2, 4])
  return %3
--- canonicalize: 2 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, 1, T, 4] = aten.unsqueeze(%0, 1)
  %2: f32[4, 2, T, 4] = aten.expand(%1, [4, 2, -1, 4])
  return %2
""",
    )


def test_hit_empty_parts() -> None:
    """The remains of a rotary embedding of the whole head: the part that is not rotated has no width."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    hidden = b.hidden()
    rest = b.call(aten.slice.Tensor, hidden, 2, 4, 9223372036854775807)
    both, all_three = ([hidden, rest], [hidden, rest, hidden])
    expect(
        transcript(b.done(*[b.call(aten.cat.default, parts, -1) for parts in (both, all_three)]), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 0] = aten.slice(%0, 2, 4, end)
  %2: f32[2, T, 4] = aten.cat([%0, %1], -1)
  %3: f32[2, T, 8] = aten.cat([%0, %1, %0], -1)
  return %2, %3
--- canonicalize: 3 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 8] = aten.cat([%0, %0], -1)
  return %0, %1
""",
    )


def test_miss_parts_that_are_filled_or_decide_the_dtype() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    hidden = b.hidden()
    rest = b.call(aten.slice.Tensor, hidden, 2, 4, 9223372036854775807)
    wide = b.call(aten.to.dtype, rest, torch.float64)
    cats = [b.call(aten.cat.default, parts, -1) for parts in ([hidden, hidden], [rest, rest], [hidden, wide])]
    assert not run_pass(b.done(*cats), PASS).changed


def test_miss_casts_cuts_and_dropout_that_do_something() -> None:
    b = GraphBuilder()
    hidden = b.hidden()
    wide = b.call(aten.to.dtype, hidden, torch.float64)
    part = b.call(aten.slice.Tensor, hidden, 1, 1, 8)
    strided = b.call(aten.slice.Tensor, hidden, 1, 0, 8, 2)
    dropped = b.call(aten.dropout.default, hidden, 0.5, True)
    expect(
        transcript(b.done(wide, part, strided, dropped), PASS),
        """\
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f64[4, 8, 4] = aten.to.dtype(%0, f64)
  %2: f32[4, 7, 4] = aten.slice(%0, 1, 1, 8)
  %3: f32[4, 4, 4] = aten.slice(%0, 1, 0, 8, 2)
  %4: f32[4, 8, 4] = aten.dropout(%0, 0.5, True)
  return %1, %2, %3, %4
--- canonicalize: 0 hits
(same)
""",
    )


@pytest.mark.parametrize("new_dim", [False, True])
def test_miss_expand_that_grows_to_t(new_dim: bool) -> None:
    b = GraphBuilder(dynamic=True)
    row = b.weight("row", *([4] if new_dim else [1, 4]))
    program = b.done(b.call(aten.expand.default, row, [b.length(), 4]))
    assert not run_pass(program, PASS).changed


def test_miss_view_with_two_dynamic_sizes() -> None:
    b = GraphBuilder(dynamic=True)
    length = b.length()
    square = b.call(
        aten.mul.Tensor, b.call(aten.unsqueeze.default, b.tokens, 1), b.call(aten.unsqueeze.default, b.tokens, 2)
    )
    program = b.done(b.call(aten.view.default, square, [2, 2, length, length]))
    assert not run_pass(program, PASS).changed
