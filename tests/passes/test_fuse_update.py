from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from prgec.passes.fuse_update import FuseUpdate
from prgec.passes.insert_self_update import InsertSelfUpdate
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import assert_close, run, state_of

aten = torch.ops.aten
prge = torch.ops.prge
PASS = FuseUpdate()
SPREAD = FuseUpdate(spread=True)
Q = 2


def example(*, state: str = "seeded", num_sites: int = 1) -> GraphProgram:
    b = GraphBuilder(num_rows=4, dynamic=True)
    hidden = b.hidden()
    program = b.done(*[b.dualized_site(hidden, f"site{i}", q=Q, rank=1, out=2) for i in range(num_sites)])
    run_pass(program, InsertSelfUpdate(state=state))
    return program


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
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
--- fuse-update: 1 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2], g: f32[2], lr: f32[], eps: f32[], seed: i64[], step: i64[]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 1] = aten.linear(%0, @site0.lora_A)
  %2: f32[4, 1, 2] = prge.dual_update(@site0.lora_B, g, lr, eps, seed, step, 0)
  %3: f32[4, T, 1] = aten.reshape(%1, [4, -1, 1])
  %4: f32[4, T, 2] = aten.bmm(%3, %2)
  %5: f32[4, T, 2] = aten.view(%4, [4, -1, 2])
  return %5
""",  # noqa: E501 - a golden line is as long as it is
    )


def test_hit_spread() -> None:
    """Copies are made right before the product that reads them."""
    program = example()
    run_pass(program, SPREAD)
    expect(
        print_program(program),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2], g: f32[2], lr: f32[], eps: f32[], seed: i64[], step: i64[]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 1] = aten.linear(%0, @site0.lora_A)
  %2: f32[2, 1, 1, 2] = prge.perturbation(@site0.lora_B, g, lr, eps, seed, step, 0)
  %3: f32[4, T, 1] = aten.reshape(%1, [4, -1, 1])
  %4: f32[2, 2, 1, 2] = aten.mul(%2, @prge_signs)
  %5: f32[2, 2, 1, 2] = aten.add(%4, @site0.lora_B)
  %6: f32[4, 1, 2] = aten.view(%5, [4, 1, 2])
  %7: f32[4, T, 2] = aten.bmm(%3, %6)
  %8: f32[4, T, 2] = aten.view(%7, [4, -1, 2])
  return %8
""",  # noqa: E501 - a golden line is as long as it is
    )


def test_hit_keeps_the_site_numbers() -> None:
    program = example(num_sites=3)
    run_pass(program, PASS)
    fused = [(str(node.args[0].target), node.args[-1]) for node in program.calls(prge.dual_update.default)]
    assert fused == [("site0.lora_B", 0), ("site1.lora_B", 1), ("site2.lora_B", 2)]


def test_miss_dual_state() -> None:
    result = run_pass(example(state="dual"), PASS)
    assert not result.changed
    assert [str(r) for r in result.refusals] == [
        "site0.lora_B: keeps 2q copies (dual state); only a single master is fused"
    ]


def _other_noise(program: GraphProgram, rewriter: Rewriter) -> None:
    rewriter.set_arg(list(program.calls(prge.randn.default))[1], 2, 9)


def _older_noise(program: GraphProgram, rewriter: Rewriter) -> None:
    rewriter.set_arg(next(node for node in program.calls(aten.sub.Tensor) if node.args[1] == 1), 1, 2)


def _other_rate(program: GraphProgram, rewriter: Rewriter) -> None:
    rewriter.set_arg(next(program.calls(aten.div.Tensor)), 1, 3)


def _minus_first(program: GraphProgram, rewriter: Rewriter) -> None:
    stack = next(program.calls(aten.stack.default))
    rewriter.set_arg(stack, 0, list(reversed(stack.args[0])))


def _multiplied(program: GraphProgram, rewriter: Rewriter) -> None:
    write = next(program.calls(aten.copy_.default))
    with rewriter.before(write):
        decayed = rewriter.call(aten.mul.Tensor, write.args[1], 0.9)
    rewriter.set_arg(write, 1, decayed)


def _from_another_master(program: GraphProgram, rewriter: Rewriter) -> None:
    write = next(program.calls(aten.copy_.default))
    with rewriter.before(write.args[1]):
        zeros = rewriter.constant("other", torch.zeros(1, 2))
    rewriter.set_arg(write.args[1], 0, zeros)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_other_noise, "the noise of this step has another key than the update's"),
        (_older_noise, "the update uses the noise of 2 steps before; expected 1"),
        (_other_rate, "the rate is lr / 3; expected lr / 2"),
        (_minus_first, "the pair is not M + eps z, M - eps z"),
        (_multiplied, "the update is aten.mul.Tensor; expected aten.sub.Tensor"),
        (_from_another_master, "the update does not start from the stored master"),
    ],
)
def test_miss_chain_that_computes_something_else(spoil: Callable[[GraphProgram, Rewriter], None], reason: str) -> None:
    program = example()
    spoil(program, Rewriter(program, "test"))
    program.finish()
    result = run_pass(program, PASS)
    assert not result.changed
    assert [str(r) for r in result.refusals] == [f"site0.lora_B: {reason}"]


@pytest.mark.parametrize("each", [PASS, SPREAD])
def test_parity(each: FuseUpdate) -> None:
    """Outputs and master over three steps with g that is not zero."""
    before, after = example(num_sites=2), example(num_sites=2)
    run_pass(after, each)
    for step in range(3):
        inputs = (*row_inputs(before, seed=step)[:-1], torch.tensor(step))
        assert_close(run(after, inputs), run(before, inputs), PASS.tier)
        assert_close(tuple(state_of(after).values()), tuple(state_of(before).values()), PASS.tier)


@pytest.mark.parametrize("eps", [0.01, 0.0])
def test_copies_are_the_same_bits_however_they_are_made(eps: float) -> None:
    whole, spread = example(num_sites=2), example(num_sites=2)
    run_pass(whole, PASS)
    run_pass(spread, SPREAD)
    for step in range(3):
        inputs = [*row_inputs(whole, seed=step)[:-1], torch.tensor(step)]
        inputs[5] = torch.tensor(eps)
        assert torch.equal(run(spread, tuple(inputs))[0], run(whole, tuple(inputs))[0])
    assert all(torch.equal(a, b) for a, b in zip(state_of(spread).values(), state_of(whole).values(), strict=True))
