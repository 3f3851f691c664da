from __future__ import annotations

import pytest
import torch
from torch.fx import Node

from prgec.errors import PassError
from prgec.passes.fold_constants import FoldConstants
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import assert_parity

aten = torch.ops.aten
PASS = FoldConstants()


def example() -> GraphProgram:
    """RoPE: angles are an outer product of positions and frequencies, the same in all four rows."""
    b = GraphBuilder(dynamic=True)
    hidden = b.hidden(4)
    frequencies = b.weight("rope.inv_freq", 1, 4)
    angles = b.call(aten.mul.Tensor, b.call(aten.unsqueeze.default, _positions(b), -1), frequencies)
    cos, sin = b.call(aten.cos.default, angles), b.call(aten.sin.default, angles)
    repeated = b.call(aten.expand.default, b.call(aten.unsqueeze.default, sin, 0), [4, -1, -1])
    return b.done(b.call(aten.mul.Tensor, hidden, cos), b.call(aten.add.Tensor, hidden, repeated))


def _positions(b: GraphBuilder) -> Node:
    return b.call(aten.arange.default, b.length(), device=torch.device("cpu"), pin_memory=False)


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: size = aten.sym_size.int(tokens, 1)
  %2: i64[T] = aten.arange(%1)
  %3: i64[T, 1] = aten.unsqueeze(%2, -1)
  %4: f32[T, 4] = aten.mul(%3, @rope.inv_freq)
  %5: f32[T, 4] = aten.cos(%4)
  %6: f32[T, 4] = aten.sin(%4)
  %7: f32[1, T, 4] = aten.unsqueeze(%6, 0)
  %8: f32[4, T, 4] = aten.expand(%7, [4, -1, -1])
  %9: f32[4, T, 4] = aten.mul(%0, %5)
  %10: f32[4, T, 4] = aten.add(%0, %8)
  return %9, %10
--- fold-constants: 2 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: size = aten.sym_size.int(tokens, 1)
  %1: f32[T, 4] = aten.slice(@folded.c0, 0, 0, %0)
  %2: f32[1, T, 4] = aten.slice(@folded.c1, 1, 0, %0)
  %3: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %4: f32[4, T, 4] = aten.mul(%3, %1)
  %5: f32[4, T, 4] = aten.add(%3, %2)
  return %4, %5
""",
    )


def test_hit_fixed_t() -> None:
    b = GraphBuilder()
    row = b.call(aten.unsqueeze.default, b.call(aten.arange.default, 8, device=torch.device("cpu")), 0)
    column = b.call(aten.unsqueeze.default, b.call(aten.arange.default, 8, device=torch.device("cpu")), 1)
    mask = b.call(aten.le.Tensor, row, column)
    expect(
        transcript(b.done(b.call(aten.masked_fill.Scalar, b.hidden(8), mask, 0.0)), PASS),
        """\
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: i64[8] = aten.arange(8)
  %1: i64[1, 8] = aten.unsqueeze(%0, 0)
  %2: i64[8] = aten.arange(8)
  %3: i64[8, 1] = aten.unsqueeze(%2, 1)
  %4: bool[8, 8] = aten.le(%1, %3)
  %5: f32[4, 8, 8] = aten.embedding(@embed.weight, tokens)
  %6: f32[4, 8, 8] = aten.masked_fill.Scalar(%5, %4, 0.0)
  return %6
--- fold-constants: 1 hits
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, 8, 8] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, 8, 8] = aten.masked_fill.Scalar(%0, @folded.c0, 0.0)
  return %1
""",
    )


def test_hit_expands_for_readers_that_need_it() -> None:
    """Arithmetic with something of the full shape repeats rows by itself; a gather does not."""
    b = GraphBuilder(dynamic=True)
    wide, index = (
        b.call(aten.expand.default, b.call(aten.unsqueeze.default, _positions(b), 0), [4, -1]) for _ in range(2)
    )
    program = b.done(b.call(aten.add.Tensor, b.tokens, wide), b.call(aten.gather.default, b.tokens, 1, index))
    assert_parity(program, PASS)
    readers = [list(node.users) for node in program.calls(aten.expand.default)]
    assert readers == [list(program.calls(aten.gather.default))]


def test_hit_a_factor_that_repeats_the_other_stays_whole() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    ones = b.call(aten.ones.default, [3, 1, 1])
    split = b.call(aten.view.default, b.hidden(), [2, 1, -1, 4])
    program = b.done(b.call(aten.mul.Tensor, split, ones))
    assert run_pass(program, PASS).hits == 1
    (product,) = program.calls(aten.mul.Tensor)
    assert tuple(program.attribute(product.args[1]).shape) == (3, 1, 1)  # type: ignore[arg-type]
    assert not list(program.calls(aten.expand.default))


def test_hit_shares_equal_tables() -> None:
    b = GraphBuilder(dynamic=True)
    first, second = (b.call(aten.add.Tensor, _positions(b), 1) for _ in range(2))
    program = b.done(b.call(aten.mul.Tensor, b.tokens, first), b.call(aten.sub.Tensor, b.tokens, second))
    assert run_pass(program, PASS).hits == 2
    assert [name for name, _ in program.module.named_buffers()] == ["folded.c0"]


def test_miss_rows_that_depend_on_t() -> None:
    """Distance to the end: row t is another one for every T, so no table holds it."""
    b = GraphBuilder(dynamic=True)
    distance = b.call(aten.rsub.Scalar, _positions(b), b.length())
    expect(
        transcript(b.done(b.call(aten.mul.Tensor, b.tokens, distance)), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: size = aten.sym_size.int(tokens, 1)
  %1: i64[T] = aten.arange(%0)
  %2: size = aten.sym_size.int(tokens, 1)
  %3: i64[T] = aten.rsub.Scalar(%1, %2)
  %4: i64[4, T] = aten.mul(tokens, %3)
  return %4
--- fold-constants: 0 hits
refused %rsub_scalar aten.rsub.Scalar: row t depends on T itself (checked at T = 2)
(same)
""",
    )


def test_miss_size_other_than_t() -> None:
    b = GraphBuilder(dynamic=True)
    doubled = b.call(aten.cat.default, [_positions(b), _positions(b)], 0)
    program = b.done(b.call(aten.mul.Tensor, b.call(aten.cat.default, [b.tokens, b.tokens], 1), doubled))
    assert [str(r) for r in run_pass(program, PASS).refusals] == [
        "%cat_default aten.cat.default: its size is not T itself"
    ]


def test_miss_too_large() -> None:
    b = GraphBuilder(dynamic=True)
    program = b.done(b.call(aten.mul.Tensor, b.tokens, _positions(b)))
    result = run_pass(program, FoldConstants(max_elements=7))
    assert not result.changed
    assert [r.reason for r in result.refusals] == ["8 elements are more than max-elements=7"]


def test_miss_state_sites_and_random_numbers() -> None:
    """State changes between calls, A and B are other passes' business, and no draw is like another."""
    b = GraphBuilder()
    state, frozen, weight = b.weight("state", 4), b.weight("q_proj.lora_A", 4), b.weight("w", 4)
    outputs = [b.call(aten.add.Tensor, b.hidden(), b.call(aten.mul.Tensor, each, 2.0)) for each in (state, frozen)]
    outputs.append(b.call(aten.add.Tensor, outputs[0], b.call(aten.rand_like.default, weight)))
    b.call(aten.copy_.default, state, weight)
    result = run_pass(b.done(*outputs), PASS)
    assert (result.changed, result.refusals) == (False, ())


def test_failure_without_tokens() -> None:
    program = GraphBuilder().done()
    program.graph.erase_node(program.placeholders()[0])
    with pytest.raises(PassError) as error:
        PASS(program)
    assert str(error.value) == (
        "fold-constants: failed: the graph has no tokens input. Hint: please report this, with the model's config.json"
    )
