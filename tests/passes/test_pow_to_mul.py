from __future__ import annotations

import torch

from prgec.passes.pow_to_mul import PowToMul
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript

aten = torch.ops.aten
PASS = PowToMul()


def example() -> GraphProgram:
    b = GraphBuilder(num_rows=2, dynamic=True)
    hidden = b.hidden()
    return b.done(*[b.call(aten.pow.Tensor_Scalar, hidden, exponent) for exponent in (2.0, 3, 3.0, 4)])


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.pow.Tensor_Scalar(%0, 2.0)
  %2: f32[2, T, 4] = aten.pow.Tensor_Scalar(%0, 3)
  %3: f32[2, T, 4] = aten.pow.Tensor_Scalar(%0, 3.0)
  %4: f32[2, T, 4] = aten.pow.Tensor_Scalar(%0, 4)
  return %1, %2, %3, %4
--- pow-to-mul: 4 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.mul(%0, %0)
  %2: f32[2, T, 4] = aten.mul(%0, %0)
  %3: f32[2, T, 4] = aten.mul(%2, %0)
  %4: f32[2, T, 4] = aten.mul(%0, %0)
  %5: f32[2, T, 4] = aten.mul(%4, %0)
  %6: f32[2, T, 4] = aten.mul(%0, %0)
  %7: f32[2, T, 4] = aten.mul(%6, %0)
  %8: f32[2, T, 4] = aten.mul(%7, %0)
  return %1, %3, %5, %8
""",
    )


def test_hit_inverse_root() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    hidden = b.hidden()
    program = b.done(b.call(aten.pow.Tensor_Scalar, b.call(aten.mul.Tensor, hidden, hidden), -0.5))
    rows = row_inputs(program)
    (before,) = program.module(*rows)
    assert run_pass(program, PASS).hits == 1
    assert [node.target for node in program.graph.nodes if node.op == "call_function"][-1] is aten.rsqrt.default
    torch.testing.assert_close(program.module(*rows)[0], before, rtol=1e-6, atol=0.0)


def test_miss() -> None:
    """The square that XNNPACK has, and powers that are not a short product."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    hidden = b.hidden()
    exponents = (2, 0.5, -2, 1, 2.5, 5, 0)
    expect(
        transcript(b.done(*[b.call(aten.pow.Tensor_Scalar, hidden, each) for each in exponents]), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.pow.Tensor_Scalar(%0, 2)
  %2: f32[2, T, 4] = aten.pow.Tensor_Scalar(%0, 0.5)
  %3: f32[2, T, 4] = aten.pow.Tensor_Scalar(%0, -2)
  %4: f32[2, T, 4] = aten.pow.Tensor_Scalar(%0, 1)
  %5: f32[2, T, 4] = aten.pow.Tensor_Scalar(%0, 2.5)
  %6: f32[2, T, 4] = aten.pow.Tensor_Scalar(%0, 5)
  %7: f32[2, T, 4] = aten.pow.Tensor_Scalar(%0, 0)
  return %1, %2, %3, %4, %5, %6, %7
--- pow-to-mul: 0 hits
(same)
""",
    )
