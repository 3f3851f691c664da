from __future__ import annotations

import torch

from prgec.passes.lower_gelu_tanh import LowerGeluTanh
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, transcript

aten = torch.ops.aten
PASS = LowerGeluTanh()


def example() -> GraphProgram:
    b = GraphBuilder(num_rows=2, dynamic=True)
    return b.done(b.call(aten.gelu.default, b.hidden(), approximate="tanh"))


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.gelu(%0, approximate=tanh)
  return %1
--- lower-gelu-tanh: 1 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.mul(%0, %0)
  %2: f32[2, T, 4] = aten.mul(%1, %0)
  %3: f32[2, T, 4] = aten.mul(%2, 0.044715)
  %4: f32[2, T, 4] = aten.add(%0, %3)
  %5: f32[2, T, 4] = aten.mul(%4, 0.7978845608028654)
  %6: f32[2, T, 4] = aten.tanh(%5)
  %7: f32[2, T, 4] = aten.mul(%0, 0.5)
  %8: f32[2, T, 4] = aten.add(%6, 1.0)
  %9: f32[2, T, 4] = aten.mul(%7, %8)
  return %9
""",
    )


def test_miss() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    hidden = b.hidden()
    expect(
        transcript(
            b.done(b.call(aten.gelu.default, hidden), b.call(aten.gelu.default, hidden, approximate="none")), PASS
        ),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.gelu(%0)
  %2: f32[2, T, 4] = aten.gelu(%0, approximate=none)
  return %1, %2
--- lower-gelu-tanh: 0 hits
(same)
""",
    )
