from __future__ import annotations

import pytest
import torch
from torch.fx import Node

from prgec.passes.decompose_composites import DecomposeComposites
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript

aten = torch.ops.aten
PASS = DecomposeComposites()


def example(*, dynamic: bool = True) -> GraphProgram:
    """A norm, a square, a merge and a split of dimensions, and a dimension that is repeated element by element."""
    b = GraphBuilder(num_rows=2, dynamic=dynamic)
    hidden = b.hidden()
    normed = b.call(aten.rms_norm.default, hidden, [4], b.weight("norm.weight", 4), 1e-6)
    split = b.call(aten.unflatten.int, b.call(aten.square.default, normed), 2, [2, 2])
    repeated = b.call(aten.repeat_interleave.self_int, split, 2, -1)
    return b.done(b.call(aten.flatten.using_ints, repeated, -2))


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.rms_norm(%0, [4], @norm.weight, 1e-06)
  %2: f32[2, T, 4] = aten.square(%1)
  %3: f32[2, T, 2, 2] = aten.unflatten.int(%2, 2, [2, 2])
  %4: f32[2, T, 2, 4] = aten.repeat_interleave.self_int(%3, 2, -1)
  %5: f32[2, T, 8] = aten.flatten.using_ints(%4, -2)
  return %5
--- decompose-composites: 5 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.pow.Tensor_Scalar(%0, 2)
  %2: f32[2, T, 1] = aten.mean.dim(%1, [-1], True)
  %3: f32[2, T, 1] = aten.add(%2, 1e-06)
  %4: f32[2, T, 1] = aten.rsqrt(%3)
  %5: f32[2, T, 4] = aten.mul(%0, %4)
  %6: f32[2, T, 4] = aten.mul(%5, @norm.weight)
  %7: f32[2, T, 4] = aten.pow.Tensor_Scalar(%6, 2)
  %8: size = aten.sym_size.int(%7, 1)
  %9: f32[2, T, 2, 2] = aten.view(%7, [2, %8, 2, 2])
  %10: f32[2, T, 2, 2, 2] = aten.stack([%9, %9], 4)
  %11: size = aten.sym_size.int(%9, 1)
  %12: f32[2, T, 2, 4] = aten.view(%10, [2, %11, 2, 4])
  %13: size = aten.sym_size.int(%12, 1)
  %14: f32[2, T, 8] = aten.view(%12, [2, %13, 8])
  return %14
""",
    )


def test_hit_without_weight_and_eps() -> None:
    b = GraphBuilder(num_rows=2)
    program = b.done(b.call(aten.rms_norm.default, b.hidden(), [4]))
    before = program.module(*_rows())
    assert run_pass(program, PASS).hits == 1
    torch.testing.assert_close(program.module(*_rows()), before, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("factors", [{}, {"beta": 0.5}, {"beta": 2.0, "alpha": 0.25}])
def test_hit_a_product_and_a_sum(factors: dict[str, float]) -> None:
    b = GraphBuilder(num_rows=2)
    hidden = b.hidden()
    program = b.done(b.call(aten.baddbmm.default, b.weight("w", 2, 1, 4), hidden, b.weight("v", 2, 4, 4), **factors))
    before = program.module(*_rows())
    assert run_pass(program, PASS).hits == 1
    torch.testing.assert_close(program.module(*_rows()), before, rtol=1e-6, atol=1e-6)


def test_hit_a_copy_and_a_view_of_it_are_one_reshape() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    turned = b.call(aten.transpose.int, b.hidden(), 1, 2)
    copy = b.call(aten.clone.default, turned, memory_format=torch.contiguous_format)
    program = b.done(b.call(aten._unsafe_view.default, copy, [2, -1]))
    assert run_pass(program, PASS).hits == 1
    assert [node.target for node in program.graph.nodes if node.op == "call_function"][-1] is aten.reshape.default
    assert not list(program.calls(aten.clone.default))


def test_hit_a_copy_that_others_read_stays() -> None:
    b = GraphBuilder(num_rows=2)
    copy = b.call(aten.clone.default, b.hidden())
    program = b.done(b.call(aten._unsafe_view.default, copy, [2, -1]), copy)
    assert run_pass(program, PASS).hits == 1
    (reshape,) = program.calls(aten.reshape.default)
    assert isinstance(reshape.args[0], Node) and reshape.args[0].target is aten.clone.default


@pytest.mark.parametrize("op", [aten.pow.Tensor_Scalar, aten.view.default, aten.linear.default])
def test_miss(op: torch._ops.OpOverload) -> None:
    b = GraphBuilder(num_rows=2)
    hidden = b.hidden()
    argument = {aten.pow.Tensor_Scalar: 2, aten.view.default: [2, -1]}.get(op)
    program = b.done(b.call(op, hidden, b.weight("w", 3, 4) if argument is None else argument))
    assert not run_pass(program, PASS).changed


def _rows() -> tuple[torch.Tensor, ...]:
    tokens = torch.arange(16).reshape(2, 8)
    return tokens, torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int64)
