from __future__ import annotations

import pytest
import torch
from torch.fx import Node

from prgec.passes.addmm_to_linear import AddmmToLinear
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import assert_parity

aten = torch.ops.aten
PASS = AddmmToLinear()
OUT = 6


def example(*, dynamic: bool = True) -> GraphProgram:
    """Two projections in a row, as Conv1D makes them."""
    b = GraphBuilder(num_rows=2, dynamic=dynamic)
    hidden = b.hidden()
    return b.done(_conv1d(b, _conv1d(b, hidden, "h.0.c_fc", 4, OUT), "h.0.c_proj", OUT, 4))


def _conv1d(b: GraphBuilder, source: Node, name: str, width: int, out: int) -> Node:
    flat = b.call(aten.view.default, source, [-1, width])
    bias, weight = b.weight(f"{name}.bias", out), b.weight(f"{name}.weight", width, out)
    return b.call(aten.view.default, b.call(aten.addmm.default, bias, flat, weight), [2, -1, out])


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2*T, 4] = aten.view(%0, [-1, 4])
  %2: f32[2*T, 6] = aten.addmm(@h.0.c_fc.bias, %1, @h.0.c_fc.weight)
  %3: f32[2, T, 6] = aten.view(%2, [2, -1, 6])
  %4: f32[2*T, 6] = aten.view(%3, [-1, 6])
  %5: f32[2*T, 4] = aten.addmm(@h.0.c_proj.bias, %4, @h.0.c_proj.weight)
  %6: f32[2, T, 4] = aten.view(%5, [2, -1, 4])
  return %6
--- addmm-to-linear: 2 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 6] = aten.linear(%0, @h.0.c_fc.weight, @h.0.c_fc.bias)
  %2: f32[2, T, 4] = aten.linear(%1, @h.0.c_proj.weight, @h.0.c_proj.bias)
  return %2
""",
    )


def test_hit_weight_is_transposed_once() -> None:
    """A weight two calls share turns once, whether they read it through one node or two."""
    b = GraphBuilder(num_rows=2)
    flat = b.call(aten.view.default, b.hidden(), [-1, 4])
    bias, weight = b.weight("c.bias", 4), b.weight("c.weight", 4, 4)
    before = b.program.attribute(weight).clone()
    sums = [b.call(aten.addmm.default, bias, flat, read) for read in (weight, weight, b.read("c.weight"))]
    program = b.done(*sums)
    assert run_pass(program, PASS).hits == 3
    assert torch.equal(program.module.get_buffer("c.weight"), before.t())


def test_hit_rows_that_stay_flat() -> None:
    """A reader of the rows themselves keeps them; the linear then works on rows."""
    b = GraphBuilder(num_rows=2)
    flat = b.call(aten.view.default, b.hidden(), [-1, 4])
    rows = b.call(aten.addmm.default, b.weight("c.bias", OUT), flat, b.weight("c.weight", 4, OUT))
    program = b.done(b.call(aten.view.default, rows, [2, -1, OUT]), b.call(aten.tanh.default, rows))
    assert_parity(program, PASS)
    assert not list(program.calls(aten.addmm.default))


def test_miss() -> None:
    b = GraphBuilder(num_rows=2)
    flat = b.call(aten.view.default, b.hidden(), [-1, 4])
    square = b.call(aten.mm.default, b.call(aten.transpose.int, flat, 0, 1), flat)
    bias, shared = b.weight("c.bias", 4), b.weight("shared.weight", 4, 4)
    calls = [
        b.call(aten.addmm.default, bias, flat, b.weight("scaled.weight", 4, 4), beta=2),
        b.call(aten.addmm.default, bias, flat, square),
        b.call(aten.addmm.default, flat, flat, b.weight("sum.weight", 4, 4)),
        b.call(aten.addmm.default, bias, flat, shared),
        b.call(aten.mm.default, flat, shared),
    ]
    expect(
        transcript(b.done(*calls), PASS),
        """\
graph(tokens: i64[2, 8], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[16, 4] = aten.view(%0, [-1, 4])
  %2: f32[4, 16] = aten.transpose.int(%1, 0, 1)
  %3: f32[4, 4] = aten.mm(%2, %1)
  %4: f32[16, 4] = aten.addmm(@c.bias, %1, @scaled.weight, beta=2)
  %5: f32[16, 4] = aten.addmm(@c.bias, %1, %3)
  %6: f32[16, 4] = aten.addmm(%1, %1, @sum.weight)
  %7: f32[16, 4] = aten.addmm(@c.bias, %1, @shared.weight)
  %8: f32[16, 4] = aten.mm(%1, @shared.weight)
  return %4, %5, %6, %7, %8
--- addmm-to-linear: 0 hits
refused %addmm_default aten.addmm.default: it scales its terms: beta
refused %addmm_default_1 aten.addmm.default: it multiplies two activations
refused %addmm_default_2 aten.addmm.default: its bias is not a vector of the checkpoint
refused %addmm_default_3 aten.addmm.default: shared.weight has other readers
(same)
""",
    )


def test_miss_a_weight_that_another_call_reads_as_it_is() -> None:
    """Turning the weight for one call would turn it for the call that stays."""
    b = GraphBuilder(num_rows=2)
    flat = b.call(aten.view.default, b.hidden(), [-1, 4])
    bias, shared = b.weight("c.bias", 4), b.weight("c.weight", 4, 4)
    calls = [b.call(aten.addmm.default, bias, flat, shared, **scale) for scale in ({}, {"beta": 2})]
    result = run_pass(b.done(*calls), PASS)
    assert not result.changed
    assert [refusal.reason for refusal in result.refusals] == [
        "c.weight is read by %addmm_default_1 aten.addmm.default too, which stays",
        "it scales its terms: beta",
    ]


@pytest.mark.parametrize("dynamic", [True, False])
def test_parity(dynamic: bool) -> None:
    assert_parity(example(dynamic=dynamic), PASS)
