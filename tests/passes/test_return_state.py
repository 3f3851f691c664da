from __future__ import annotations

import pytest
import torch

from prgec.errors import PassError
from prgec.passes.fuse_update import FuseUpdate
from prgec.passes.hoist_updates import HoistUpdates
from prgec.passes.insert_self_update import InsertSelfUpdate
from prgec.passes.program import GraphProgram
from prgec.passes.return_state import ReturnState
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import assert_parity, run, set_state, state_of

PASS = ReturnState()
Q, RANK, OUTS = 2, 1, (2, 3)


def example(state: str = "seeded", num_sites: int = 1) -> GraphProgram:
    b = GraphBuilder(num_rows=4, dynamic=True)
    hidden = b.hidden()
    program = b.done(*[b.dualized_site(hidden, f"site{i}", q=Q, rank=RANK, out=OUTS[i]) for i in range(num_sites)])
    run_pass(program, InsertSelfUpdate(state=state))
    run_pass(program, HoistUpdates())
    return program


def parity(program: GraphProgram, each: ReturnState) -> None:
    """The master of the one site comes after the losses."""
    assert_parity(program, each, appended=1)


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2], g: f32[2], lr: f32[], eps: f32[], seed: i64[], step: i64[]):
  %0: i64[] = aten.sub(step, 1)
  %1: f32[2, 1, 2] = prge.randn(seed, %0, 0, 2, [1, 2])
  %2: f32[] = aten.div(lr, 2)
  %3: f32[2, 1, 1] = aten.view(g, [2, 1, 1])
  %4: f32[2, 1, 2] = aten.mul(%1, %3)
  %5: f32[1, 2] = aten.sum.dim_IntList(%4, [0])
  %6: f32[1, 2] = aten.mul(%5, %2)
  %7: f32[1, 2] = aten.sub(@site0.lora_B, %6)
  %8: f32[1, 2] = aten.copy_(@site0.lora_B, %7)
  %9: f32[2, 1, 2] = prge.randn(seed, step, 0, 2, [1, 2])
  %10: f32[2, 1, 2] = aten.mul(%9, eps)
  %11: f32[2, 1, 2] = aten.add(%7, %10)
  %12: f32[2, 1, 2] = aten.sub(%7, %10)
  %13: f32[2, 2, 1, 2] = aten.stack([%11, %12], 1)
  %14: f32[4, 1, 2] = aten.view(%13, [4, 1, 2])
  %15: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %16: f32[4, T, 1] = aten.linear(%15, @site0.lora_A)
  %17: f32[4, T, 1] = aten.reshape(%16, [4, -1, 1])
  %18: f32[4, T, 2] = aten.bmm(%17, %14)
  %19: f32[4, T, 2] = aten.view(%18, [4, -1, 2])
  return %19
--- return-state: 1 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2], g: f32[2], lr: f32[], eps: f32[], seed: i64[], step: i64[]):
  %0: i64[] = aten.sub(step, 1)
  %1: f32[2, 1, 2] = prge.randn(seed, %0, 0, 2, [1, 2])
  %2: f32[] = aten.div(lr, 2)
  %3: f32[2, 1, 1] = aten.view(g, [2, 1, 1])
  %4: f32[2, 1, 2] = aten.mul(%1, %3)
  %5: f32[1, 2] = aten.sum.dim_IntList(%4, [0])
  %6: f32[1, 2] = aten.mul(%5, %2)
  %7: f32[1, 2] = aten.sub(@site0.lora_B, %6)
  %8: f32[1, 2] = aten.copy_(@site0.lora_B, %7)
  %9: f32[2, 1, 2] = prge.randn(seed, step, 0, 2, [1, 2])
  %10: f32[2, 1, 2] = aten.mul(%9, eps)
  %11: f32[2, 1, 2] = aten.add(%7, %10)
  %12: f32[2, 1, 2] = aten.sub(%7, %10)
  %13: f32[2, 2, 1, 2] = aten.stack([%11, %12], 1)
  %14: f32[4, 1, 2] = aten.view(%13, [4, 1, 2])
  %15: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %16: f32[4, T, 1] = aten.linear(%15, @site0.lora_A)
  %17: f32[4, T, 1] = aten.reshape(%16, [4, -1, 1])
  %18: f32[4, T, 2] = aten.bmm(%17, %14)
  %19: f32[4, T, 2] = aten.view(%18, [4, -1, 2])
  return %19, %7
""",  # noqa: E501 - a golden line is as long as it is
    )


def test_miss_without_state() -> None:
    b = GraphBuilder(dynamic=True)
    expect(
        transcript(b.done(b.hidden()), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  return %0
--- return-state: 0 hits
(same)
""",
    )


def test_failure_fused() -> None:
    program = example()
    run_pass(program, FuseUpdate())
    with pytest.raises(PassError, match="inside prge.dual_update.default; leave out fuse-update"):
        PASS(program)


def test_failure_dual() -> None:
    with pytest.raises(PassError, match="the state is dual; only a single master a site can be returned"):
        PASS(example("dual"))


def test_parity() -> None:
    """The losses are the same bits, followed by the state after the call, site by site."""
    plain, program = example(num_sites=2), example(num_sites=2)
    assert run_pass(program, PASS).hits == 2
    start = {f"site{i}.lora_B": torch.full((RANK, out), 0.5 + i) for i, out in enumerate(OUTS)}
    rows = row_inputs(GraphBuilder(num_rows=4).done())
    for each in (plain, program):
        set_state(each, start)
    for step, g in enumerate(([0.0, 0.0], [1.5, -0.5])):
        scalars = (torch.tensor(g), torch.tensor(0.1), torch.tensor(0.05), torch.tensor(3), torch.tensor(step))
        expected, actual = run(plain, (*rows, *scalars)), run(program, (*rows, *scalars))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(actual[:2], expected, strict=True))
        state = state_of(program)
        assert all(torch.equal(ours, state[name]) for ours, name in zip(actual[2:], start, strict=True))
    assert not torch.equal(actual[2], start["site0.lora_B"])
