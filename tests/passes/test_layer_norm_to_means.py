from __future__ import annotations

import pytest
import torch

from prgec.passes.layer_norm_to_means import LayerNormToMeans
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, transcript
from tests.passes.parity import assert_parity

aten = torch.ops.aten
PASS = LayerNormToMeans()


def example() -> GraphProgram:
    b = GraphBuilder(num_rows=2, dynamic=True)
    weights = b.weight("ln.weight", 4), b.weight("ln.bias", 4)
    return b.done(b.call(aten.layer_norm.default, b.hidden(), [4], *weights, 1e-5, False))


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.layer_norm(%0, [4], @ln.weight, @ln.bias, 1e-05, False)
  return %1
--- layer-norm-to-means: 1 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 1] = aten.mean.dim(%0, [-1], True)
  %2: f32[2, T, 4] = aten.sub(%0, %1)
  %3: f32[2, T, 4] = aten.mul(%2, %2)
  %4: f32[2, T, 1] = aten.mean.dim(%3, [-1], True)
  %5: f32[2, T, 1] = aten.add(%4, 1e-05)
  %6: f32[2, T, 1] = aten.rsqrt(%5)
  %7: f32[2, T, 4] = aten.mul(%2, %6)
  %8: f32[2, T, 4] = aten.mul(%7, @ln.weight)
  %9: f32[2, T, 4] = aten.add(%8, @ln.bias)
  return %9
""",
    )


@pytest.mark.parametrize("has_weight", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_hit_without_weight_or_bias(has_weight: bool, has_bias: bool) -> None:
    b = GraphBuilder(num_rows=2)
    given = {
        "weight": b.weight("ln.weight", 4) if has_weight else None,
        "bias": b.weight("ln.bias", 4) if has_bias else None,
    }
    hidden = b.hidden()
    # A large eps shows whether it is used; the default one is below rounding.
    norms = [b.call(aten.layer_norm.default, hidden, [4], **given, **eps) for eps in ({}, {"eps": 0.5})]
    assert_parity(b.done(*norms), PASS)


def test_hit_row_that_is_constant() -> None:
    """Variance zero: eps keeps the result finite."""
    b = GraphBuilder(num_rows=2)
    flat = b.call(aten.mul.Tensor, b.hidden(), 0.0)
    program = b.done(b.call(aten.layer_norm.default, b.call(aten.add.Tensor, flat, 3.0), [4], None, b.weight("b", 4)))
    assert_parity(program, PASS)


def test_miss() -> None:
    b = GraphBuilder(num_rows=2)
    hidden = b.hidden()
    over_two = b.call(aten.layer_norm.default, hidden, [8, 4])
    double = b.call(aten.layer_norm.default, b.call(aten.to.dtype, hidden, torch.float64), [4])
    expect(
        transcript(b.done(over_two, double), PASS),
        """\
graph(tokens: i64[2, 8], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, 8, 4] = aten.layer_norm(%0, [8, 4])
  %2: f64[2, 8, 4] = aten.to.dtype(%0, f64)
  %3: f64[2, 8, 4] = aten.layer_norm(%2, [4])
  return %1, %3
--- layer-norm-to-means: 0 hits
refused %layer_norm_default aten.layer_norm.default: it normalises over 2 dimensions
refused %layer_norm_default_1 aten.layer_norm.default: it computes in torch.float64; expected f32
(same)
""",
    )
