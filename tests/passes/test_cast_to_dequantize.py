from __future__ import annotations

import torch

from prgec.passes.cast_to_dequantize import CastToDequantize
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, transcript

aten = torch.ops.aten
PASS = CastToDequantize()


def _codes(b: GraphBuilder, dtype: torch.dtype) -> torch.fx.Node:
    return b.call(aten.to.dtype, b.hidden(), dtype)


def example() -> GraphProgram:
    b = GraphBuilder(num_rows=2, dynamic=True)
    return b.done(b.call(aten.to.dtype, _codes(b, torch.int8), torch.float32))


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: i8[2, T, 4] = aten.to.dtype(%0, i8)
  %2: f32[2, T, 4] = aten.to.dtype(%1, f32)
  return %2
--- cast-to-dequantize: 1 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: i8[2, T, 4] = aten.to.dtype(%0, i8)
  %2: f32[2, T, 4] = quantized_decomposed.dequantize_per_tensor(%1, 1.0, 0, -128, 127, i8)
  return %2
""",
    )


def test_miss() -> None:
    """Other types, and casts to others."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    wide = b.call(aten.to.dtype, _codes(b, torch.int16), torch.float32)
    expect(
        transcript(b.done(wide, b.call(aten.to.dtype, _codes(b, torch.int8), torch.int32)), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: i16[2, T, 4] = aten.to.dtype(%0, i16)
  %2: f32[2, T, 4] = aten.to.dtype(%1, f32)
  %3: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %4: i8[2, T, 4] = aten.to.dtype(%3, i8)
  %5: i32[2, T, 4] = aten.to.dtype(%4, i32)
  return %2, %5
--- cast-to-dequantize: 0 hits
(same)
""",
    )
