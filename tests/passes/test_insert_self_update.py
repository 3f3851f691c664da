from __future__ import annotations

import pytest
import torch

from prgec.core.contract.names import DUAL_EPS_STATE
from prgec.errors import PassError
from prgec.passes.infra import CHANGES
from prgec.passes.insert_self_update import InsertSelfUpdate
from prgec.passes.program import GraphProgram
from prgec.passes.sites import sites_of
from prgec.runtime_ops import noise
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import run, set_state, state_of

aten = torch.ops.aten
PASS = InsertSelfUpdate()
Q, RANK, OUT = 2, 1, 2
START = torch.tensor([[0.5, -1.0]])
SEED, LR, EPS = 7, 0.1, 0.05
# Projected gradients fed back before each step; the first call of a run knows none.
STEPS_G = ([0.0, 0.0], [1.5, -0.5], [-2.0, 3.0], [0.25, 1.0])


def example(*, num_sites: int = 1) -> GraphProgram:
    b = GraphBuilder(num_rows=4, dynamic=True)
    hidden = b.hidden()
    sites = [b.dualized_site(hidden, f"site{i}", q=Q, rank=RANK, out=OUT) for i in range(num_sites)]
    return b.done(*sites)


def test_hit_seeded() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 1] = aten.linear(%0, @site0.lora_A)
  %2: f32[1, 1, 2] = aten.unsqueeze(@site0.lora_B, 0)
  %3: f32[4, 1, 2] = aten.expand(%2, [4, -1, -1])
  %4: f32[4, T, 1] = aten.reshape(%1, [4, -1, 1])
  %5: f32[4, T, 2] = aten.bmm(%4, %3)
  %6: f32[4, T, 2] = aten.view(%5, [4, -1, 2])
  return %6
--- insert-self-update: 1 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2], g: f32[2], lr: f32[], eps: f32[], seed: i64[], step: i64[]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 1] = aten.linear(%0, @site0.lora_A)
  %2: i64[] = aten.sub(step, 1)
  %3: f32[2, 1, 2] = prge.randn(seed, %2, 0, 2, [1, 2])
  %4: f32[] = aten.div(lr, 2)
  %5: f32[2, 1, 1] = aten.view(g, [2, 1, 1])
  %6: f32[2, 1, 2] = aten.mul(%3, %5)
  %7: f32[1, 2] = aten.sum.dim_IntList(%6, [0])
  %8: f32[1, 2] = aten.mul(%7, %4)
  %9: f32[1, 2] = aten.sub(@site0.lora_B, %8)
  %10: f32[1, 2] = aten.copy_(@site0.lora_B, %9)
  %11: f32[2, 1, 2] = prge.randn(seed, step, 0, 2, [1, 2])
  %12: f32[2, 1, 2] = aten.mul(%11, eps)
  %13: f32[2, 1, 2] = aten.add(%9, %12)
  %14: f32[2, 1, 2] = aten.sub(%9, %12)
  %15: f32[2, 2, 1, 2] = aten.stack([%13, %14], 1)
  %16: f32[4, 1, 2] = aten.view(%15, [4, 1, 2])
  %17: f32[4, T, 1] = aten.reshape(%1, [4, -1, 1])
  %18: f32[4, T, 2] = aten.bmm(%17, %16)
  %19: f32[4, T, 2] = aten.view(%18, [4, -1, 2])
  return %19
""",  # noqa: E501 - a golden line is as long as it is
    )


def test_hit_host() -> None:
    """Inputs in site order stand for the copies; nothing of B is left, and nothing of ours."""
    program = example(num_sites=2)
    sites = sites_of(program)
    result = transcript(program, InsertSelfUpdate(state="host")).split("--- ")[1]
    expect(
        result,
        """\
insert-self-update: 2 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2], lora_B_0: f32[4, 1, 2], lora_B_1: f32[4, 1, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 1] = aten.linear(%0, @site0.lora_A)
  %2: f32[4, T, 1] = aten.reshape(%1, [4, -1, 1])
  %3: f32[4, T, 2] = aten.bmm(%2, lora_B_0)
  %4: f32[4, T, 2] = aten.view(%3, [4, -1, 2])
  %5: f32[4, T, 1] = aten.linear(%0, @site1.lora_A)
  %6: f32[4, T, 1] = aten.reshape(%5, [4, -1, 1])
  %7: f32[4, T, 2] = aten.bmm(%6, lora_B_1)
  %8: f32[4, T, 2] = aten.view(%7, [4, -1, 2])
  return %4, %8
""",
    )
    assert sites_of(program) == sites
    assert not [name for name, _ in program.module.named_buffers() if name.endswith("lora_B")]
    with pytest.raises(PassError, match="the graph updates itself already"):
        PASS(program)


def test_hit_dual() -> None:
    expect(
        transcript(example(), InsertSelfUpdate(state="dual")),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 1] = aten.linear(%0, @site0.lora_A)
  %2: f32[1, 1, 2] = aten.unsqueeze(@site0.lora_B, 0)
  %3: f32[4, 1, 2] = aten.expand(%2, [4, -1, -1])
  %4: f32[4, T, 1] = aten.reshape(%1, [4, -1, 1])
  %5: f32[4, T, 2] = aten.bmm(%4, %3)
  %6: f32[4, T, 2] = aten.view(%5, [4, -1, 2])
  return %6
--- insert-self-update: 1 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2], g: f32[2], lr: f32[], eps: f32[], seed: i64[], step: i64[]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 1] = aten.linear(%0, @site0.lora_A)
  %2: f32[] = aten.select.int(@prge_dual_eps, 0, 0)
  %3: f32[] = aten.clamp(%2, 1e-30)
  %4: f32[] = aten.mul(%3, 2)
  %5: f32[] = aten.div(lr, %4)
  %6: f32[2, 1, 2] = aten.select.int(@site0.lora_B, 1, 0)
  %7: f32[2, 1, 2] = aten.select.int(@site0.lora_B, 1, 1)
  %8: f32[1, 2] = aten.select.int(%6, 0, 0)
  %9: f32[1, 2] = aten.select.int(%7, 0, 0)
  %10: f32[1, 2] = aten.add(%8, %9)
  %11: f32[1, 2] = aten.mul(%10, 0.5)
  %12: f32[2, 1, 2] = aten.sub(%6, %7)
  %13: f32[2, 1, 2] = aten.mul(%12, 0.5)
  %14: f32[2, 1, 1] = aten.view(g, [2, 1, 1])
  %15: f32[2, 1, 2] = aten.mul(%13, %14)
  %16: f32[1, 2] = aten.sum.dim_IntList(%15, [0])
  %17: f32[1, 2] = aten.mul(%16, %5)
  %18: f32[1, 2] = aten.sub(%11, %17)
  %19: f32[2, 1, 2] = prge.randn(seed, step, 0, 2, [1, 2])
  %20: f32[2, 1, 2] = aten.mul(%19, eps)
  %21: f32[2, 1, 2] = aten.add(%18, %20)
  %22: f32[2, 1, 2] = aten.sub(%18, %20)
  %23: f32[2, 2, 1, 2] = aten.stack([%21, %22], 1)
  %24: f32[2, 2, 1, 2] = aten.copy_(@site0.lora_B, %23)
  %25: f32[4, 1, 2] = aten.view(%23, [4, 1, 2])
  %26: f32[2] = aten.expand(eps, [2])
  %27: f32[2] = aten.copy_(@prge_dual_eps, %26)
  %28: f32[4, T, 1] = aten.reshape(%1, [4, -1, 1])
  %29: f32[4, T, 2] = aten.bmm(%28, %25)
  %30: f32[4, T, 2] = aten.view(%29, [4, -1, 2])
  return %30
""",  # noqa: E501 - a golden line is as long as it is
    )


def test_hit_every_site_draws_its_own_noise() -> None:
    program = example(num_sites=3)
    run_pass(program, PASS)
    drawn = [node.args[2] for node in program.calls(torch.ops.prge.randn.default)]
    assert drawn == [0, 0, 1, 1, 2, 2]


def test_miss_without_sites() -> None:
    b = GraphBuilder()
    hidden = b.hidden()
    copies = b.call(aten.expand.default, b.call(aten.unsqueeze.default, b.weight("scale", 4), 0), [8, -1])
    expect(
        transcript(b.done(b.call(aten.mul.Tensor, hidden, copies)), PASS),
        """\
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[1, 4] = aten.unsqueeze(@scale, 0)
  %2: f32[8, 4] = aten.expand(%1, [8, -1])
  %3: f32[4, 8, 4] = aten.mul(%0, %2)
  return %3
--- insert-self-update: 0 hits
(same)
""",
    )


def test_failure_on_a_second_run() -> None:
    program = example()
    run_pass(program, PASS)
    with pytest.raises(PassError) as error:
        PASS(program)
    assert str(error.value) == "insert-self-update: cannot run: the graph updates itself already"


def test_failure_unknown_state() -> None:
    with pytest.raises(PassError) as error:
        InsertSelfUpdate(state="momentum")(example())
    assert str(error.value) == (
        "insert-self-update: cannot run: state is 'momentum'; expected one of seeded, dual, host"
    )


@pytest.mark.parametrize("state", ["seeded", "dual"])
def test_parity_without_perturbation_nothing_changes(state: str) -> None:
    """The tier is CHANGES, but with g = 0 and eps = 0 every output must be the one before, whatever B is."""
    plain, program = example(), example()
    run_pass(program, InsertSelfUpdate(state=state))
    assert InsertSelfUpdate.tier == CHANGES
    start = START if state == "seeded" else START.expand(Q, 2, RANK, OUT)
    program.module.get_buffer("site0.lora_B").copy_(start)
    plain.module.get_buffer("site0.lora_B").copy_(START)
    rows = row_inputs(plain)
    scalars = (torch.zeros(Q), torch.tensor(LR), torch.tensor(0.0), torch.tensor(SEED), torch.tensor(3))
    held = state_of(program)
    assert torch.equal(run(program, (*rows, *scalars))[0], run(plain, rows)[0])
    assert all(torch.equal(held[name], value) for name, value in state_of(program).items())


@pytest.mark.parametrize("state", ["seeded", "dual"])
def test_parity_with_the_textbook_step(state: str) -> None:
    """M moves along -lr/q sum_i g_i z_i; rows of query i see M + eps z_i, then M - eps z_i."""
    program = example()
    run_pass(program, InsertSelfUpdate(state=state))
    set_state(program, {"site0.lora_B": START if state == "seeded" else START.expand(Q, 2, RANK, OUT)})
    frozen = program.module.get_buffer("site0.lora_A")
    embedding = program.module.get_buffer("embed.weight")
    rows = row_inputs(example())
    master = START.clone()
    for step, g in enumerate(STEPS_G):
        master = master - LR / Q * sum(g_i * z for g_i, z in zip(g, _noise(step - 1), strict=True))
        copies = [master + sign * EPS * z for z in _noise(step) for sign in (1.0, -1.0)]
        expected = torch.stack([embedding[row] @ frozen.T @ copy for row, copy in zip(rows[0], copies, strict=True)])
        scalars = (torch.tensor(g), torch.tensor(LR), torch.tensor(EPS), torch.tensor(SEED), torch.tensor(step))
        torch.testing.assert_close(run(program, (*rows, *scalars))[0], expected, rtol=1e-4, atol=1e-5)


def test_parity_dual_survives_a_change_of_eps() -> None:
    """The noise is recovered with the eps that made it, which is state and not this call's eps."""
    programs = [example(), example()]
    for program, state in zip(programs, ("seeded", "dual"), strict=True):
        run_pass(program, InsertSelfUpdate(state=state))
    rows = row_inputs(example())
    for step, (g, eps) in enumerate(zip(STEPS_G, (0.05, 0.2, 0.01, 0.0), strict=True)):
        scalars = (torch.tensor(g), torch.tensor(LR), torch.tensor(eps), torch.tensor(SEED), torch.tensor(step))
        seeded, dual = (run(program, (*rows, *scalars))[0] for program in programs)
        torch.testing.assert_close(seeded, dual, rtol=1e-4, atol=1e-5)
    assert torch.equal(programs[1].module.get_buffer(DUAL_EPS_STATE), torch.zeros(2))


def _noise(step: int) -> torch.Tensor:
    return noise.randn(torch.tensor(SEED), torch.tensor(step), 0, Q, (RANK, OUT))
