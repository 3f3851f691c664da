from __future__ import annotations

import pytest
import torch

from prgec.passes.lower_softplus import LowerSoftplus
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript

aten = torch.ops.aten
PASS = LowerSoftplus()


def example(*, dynamic: bool = True) -> GraphProgram:
    b = GraphBuilder(num_rows=2, dynamic=dynamic)
    return b.done(b.call(aten.softplus.default, b.hidden()))


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.softplus(%0)
  return %1
--- lower-softplus: 1 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.relu(%0)
  %2: f32[2, T, 4] = aten.mul(%1, 2.0)
  %3: f32[2, T, 4] = aten.sub(%0, %2)
  %4: f32[2, T, 4] = aten.exp(%3)
  %5: f32[2, T, 4] = aten.add(%4, 1.0)
  %6: f32[2, T, 4] = aten.log(%5)
  %7: f32[2, T, 4] = aten.add(%1, %6)
  return %7
""",
    )


def test_hit_far_out() -> None:
    """Where the exponential of x overflows, and where that of -x does."""
    b = GraphBuilder(num_rows=2)
    x = torch.tensor([-200.0, -90.0, -20.0, -1e-3, 0.0, 1e-3, 19.0, 21.0, 90.0, 200.0])
    program = b.done(b.call(aten.softplus.default, b.tensor("x", x)))
    assert run_pass(program, PASS).hits == 1
    (found,) = program.module(*row_inputs(program))
    expected = torch.nn.functional.softplus(x.double(), threshold=1000.0)
    torch.testing.assert_close(found.double(), expected, rtol=2e-7, atol=6e-8)


@pytest.mark.parametrize("arguments", [(2, 20), (1, 5)])
def test_miss(arguments: tuple[int, int]) -> None:
    b = GraphBuilder(num_rows=2)
    result = run_pass(b.done(b.call(aten.softplus.default, b.hidden(), *arguments)), PASS)
    assert not result.changed and "its slope is" in str(result.refusals[0])
