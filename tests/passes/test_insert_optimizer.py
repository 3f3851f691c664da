from __future__ import annotations

import pytest
import torch
from torch import Tensor

from prgec.errors import PassError
from prgec.passes.infra import CHANGES
from prgec.passes.insert_optimizer import InsertOptimizer
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from prgec.passes.sites import sites_of
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import run, state_of

aten = torch.ops.aten
PASS = InsertOptimizer(rule="adamw", clip=0.5, decay=0.1)
RATES = (0.1, 0.05, 0.2)


def example(*, num_sites: int = 1) -> GraphProgram:
    """A loss by row and a gradient by site that depends on the site's B."""
    b = GraphBuilder(num_rows=2)
    hidden = b.hidden()
    sites = [f"site{i}" for i in range(num_sites)]
    total = hidden
    for site in sites:
        total = b.call(aten.add.Tensor, total, b.injected_site(hidden, site, rank=2, out=4))
    loss = b.call(aten.mean.dim, total, [1, 2])
    pull = b.call(aten.mean.dim, hidden, [0, 1])
    gradients = [b.call(aten.add.Tensor, b.read(f"{site}.lora_B"), pull) for site in sites]
    return b.done(loss, *gradients)


def test_hit_adamw() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, 8], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, 8, 2] = aten.linear(%0, @site0.lora_A)
  %2: f32[2, 8, 4] = aten.matmul(%1, @site0.lora_B)
  %3: f32[2, 8, 4] = aten.add(%0, %2)
  %4: f32[2] = aten.mean.dim(%3, [1, 2])
  %5: f32[4] = aten.mean.dim(%0, [0, 1])
  %6: f32[2, 4] = aten.add(@site0.lora_B, %5)
  return %4, %6
--- insert-optimizer: 1 hits
graph(tokens: i64[2, 8], label_pos: i64[2, 2], targets: i64[2, 2], lr: f32[]):
  %0: f32[2, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, 8, 2] = aten.linear(%0, @site0.lora_A)
  %2: f32[2, 8, 4] = aten.matmul(%1, @site0.lora_B)
  %3: f32[2, 8, 4] = aten.add(%0, %2)
  %4: f32[2] = aten.mean.dim(%3, [1, 2])
  %5: f32[4] = aten.mean.dim(%0, [0, 1])
  %6: f32[2, 4] = aten.add(@site0.lora_B, %5)
  %7: f32[4] = prge.step_scale(@prge_optimizer, [%6], %4, lr, 0.5, 0.9, 0.999, False, 0.2)
  %8: f32[1] = prge.adamw_update(@site0.lora_B, @site0.lora_B_mean, @site0.lora_B_square, %6, lr, %7, 0.9, 0.999, 1e-08, 0.1)
  return %4, %7
""",  # noqa: E501 - a golden line is as long as it is
    )


def test_hit_host() -> None:
    """B comes in and gradients go out; the rule is only recorded."""
    program = example(num_sites=2)
    sites = sites_of(program)
    result = transcript(program, InsertOptimizer(rule="adamw", decay=0.1, state="host")).split("--- ")[1]
    expect(
        result,
        """\
insert-optimizer: 2 hits
graph(tokens: i64[2, 8], label_pos: i64[2, 2], targets: i64[2, 2], lora_B_0: f32[2, 4], lora_B_1: f32[2, 4]):
  %0: f32[2, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, 8, 2] = aten.linear(%0, @site0.lora_A)
  %2: f32[2, 8, 4] = aten.matmul(%1, lora_B_0)
  %3: f32[2, 8, 4] = aten.add(%0, %2)
  %4: f32[2, 8, 2] = aten.linear(%0, @site1.lora_A)
  %5: f32[2, 8, 4] = aten.matmul(%4, lora_B_1)
  %6: f32[2, 8, 4] = aten.add(%3, %5)
  %7: f32[2] = aten.mean.dim(%6, [1, 2])
  %8: f32[4] = aten.mean.dim(%0, [0, 1])
  %9: f32[2, 4] = aten.add(lora_B_0, %8)
  %10: f32[2, 4] = aten.add(lora_B_1, %8)
  return %7, %9, %10
""",
    )
    assert sites_of(program) == sites
    with pytest.raises(PassError, match="the graph updates itself already"):
        PASS(program)


def test_hit_momentum() -> None:
    expect(
        update_of(InsertOptimizer(rule="momentum", beta1=0.8)),
        """\
%7: f32[4] = prge.step_scale(@prge_optimizer, [%6], %4, lr, 0.0, 0.8, 0.999, True, 0.2)
%8: f32[1] = prge.momentum_update(@site0.lora_B, @site0.lora_B_mean, %6, lr, %7, 0.8, 0.0)
return %4, %7
site0.lora_B: [2, 4]
prge_optimizer: [4]
site0.lora_B_mean: [2, 4]
""",
    )


def test_hit_norm() -> None:
    """One number of state for all sites, and a scale that makes steps of one length."""
    expect(
        update_of(InsertOptimizer(rule="norm", decay=0.25, polyak=0.5), num_sites=2),
        """\
%11: f32[4] = prge.step_scale(@prge_optimizer, [%9, %10], %7, lr, 0.0, 0.9, 0.999, True, 0.5)
%12: f32[1] = prge.sgd_update(@site0.lora_B, %9, lr, %11, 0.25)
%13: f32[1] = prge.sgd_update(@site1.lora_B, %10, lr, %11, 0.25)
return %7, %11
site0.lora_B: [2, 4]
site1.lora_B: [2, 4]
prge_optimizer: [4]
""",
    )


def test_hit_accumulate() -> None:
    """Sums of losses and gradients beside each B, and nothing but the mean is read after them."""
    expect(
        update_of(InsertOptimizer(rule="norm", accumulate=True), num_sites=2),
        """\
%11: f32[2] = prge.accumulate(@prge_loss_sum, %7, call)
%12: f32[2, 4] = prge.accumulate(@site0.lora_B_sum, %9, call)
%13: f32[2, 4] = prge.accumulate(@site1.lora_B_sum, %10, call)
%14: f32[4] = prge.step_scale(@prge_optimizer, [%12, %13], %11, lr, 0.0, 0.9, 0.999, True, 0.2)
%15: f32[1] = prge.sgd_update(@site0.lora_B, %12, lr, %14, 0.0)
%16: f32[1] = prge.sgd_update(@site1.lora_B, %13, lr, %14, 0.0)
return %7, %14
site0.lora_B: [2, 4]
site1.lora_B: [2, 4]
prge_loss_sum: [2]
site0.lora_B_sum: [2, 4]
site1.lora_B_sum: [2, 4]
prge_optimizer: [4]
""",
    )


def update_of(each: InsertOptimizer, *, num_sites: int = 1) -> str:
    """The ops that update, and the shape of all state."""
    program = example(num_sites=num_sites)
    run_pass(program, each)
    calls = [line for line in print_program(program).splitlines() if "prge." in line or "return" in line]
    state = [f"{name}: {list(value.shape)}" for name, value in state_of(program).items()]
    return "".join(f"{line.strip()}\n" for line in (*calls, *state))


def test_hit_losses_are_those_from_before_the_update() -> None:
    program = example()
    before = run(program, row_inputs(program))[0]
    rows = row_inputs(program)
    run_pass(program, PASS)
    first, second = (run(program, (*rows, torch.tensor(0.5)))[0] for _ in range(2))
    assert torch.equal(first, before)
    assert not torch.equal(second, before)


def test_miss_keeps_what_is_no_gradient() -> None:
    """Outputs other than the losses and one gradient by site are refused, not taken for gradients."""
    b = GraphBuilder(num_rows=2)
    hidden = b.hidden()
    assert refusal(b.done(hidden, b.call(aten.neg.default, hidden))) == (
        "insert-optimizer: cannot run: the graph does not return one gradient for each site"
    )


@pytest.mark.parametrize(
    ("each", "reason"),
    [
        (InsertOptimizer(rule="sgd"), "rule is 'sgd'; expected one of norm, momentum, adamw"),
        (InsertOptimizer(beta1=1.0), "beta1 is 1.0 and beta2 0.999; expected 0 or more and less than 1"),
        (InsertOptimizer(beta1=-0.1), "beta1 is -0.1 and beta2 0.999; expected 0 or more and less than 1"),
        (InsertOptimizer(beta2=1.0), "beta1 is 0.9 and beta2 1.0; expected 0 or more and less than 1"),
        (InsertOptimizer(beta2=-0.1), "beta1 is 0.9 and beta2 -0.1; expected 0 or more and less than 1"),
        (InsertOptimizer(clip=-1.0), "clip is -1.0, eps 1e-08, decay 0.0 and polyak 0.2; expected 0 or more"),
        (InsertOptimizer(eps=-1.0), "clip is 0.0, eps -1.0, decay 0.0 and polyak 0.2; expected 0 or more"),
        (InsertOptimizer(polyak=-1.0), "clip is 0.0, eps 1e-08, decay 0.0 and polyak -1.0; expected 0 or more"),
        (InsertOptimizer(decay=-1.0), "clip is 0.0, eps 1e-08, decay -1.0 and polyak 0.2; expected 0 or more"),
    ],
)
def test_failure_options(each: InsertOptimizer, reason: str) -> None:
    assert refusal(example(), each) == f"insert-optimizer: cannot run: {reason}"


@pytest.mark.parametrize("each", [InsertOptimizer(beta1=0.0), InsertOptimizer(beta2=0.0)])
def test_hit_without_a_memory(each: InsertOptimizer) -> None:
    assert run_pass(example(), each).changed


def test_failure_a_gradient_is_missing() -> None:
    b = GraphBuilder(num_rows=2)
    program = b.done(b.injected_site(b.hidden(), "site", rank=2, out=4))
    assert refusal(program) == ("insert-optimizer: cannot run: the graph does not return one gradient for each site")


def test_failure_on_a_second_run() -> None:
    program = example()
    run_pass(program, PASS)
    assert refusal(program) == "insert-optimizer: cannot run: the graph updates itself already"


def refusal(program: GraphProgram, each: InsertOptimizer = PASS) -> str:
    with pytest.raises(PassError) as error:
        each(program)
    return str(error.value)


@pytest.mark.parametrize(("clip", "polyak"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.2)])
@pytest.mark.parametrize("rule", ["norm", "momentum", "adamw"])
def test_parity_with_the_textbook(rule: str, clip: float, polyak: float) -> None:
    """Three steps at three rates, two sites that share one length of the gradient."""
    each = InsertOptimizer(rule=rule, clip=clip, decay=0.1, polyak=polyak)
    assert each.tier == CHANGES
    program = example(num_sites=2)
    rows = row_inputs(program)
    pull = program.module.get_buffer("embed.weight")[rows[0]].mean((0, 1)).double()
    run_pass(program, each)
    textbook = Textbook(each, torch.zeros(2, 2, 4, dtype=torch.float64))
    for lr in RATES:
        losses, factors = run(program, (*rows, torch.tensor(lr)))
        norm = textbook.step(textbook.weights + pull, lr, float(losses.mean()))
        assert float(factors[1]) == pytest.approx(norm, rel=1e-5)
    found = torch.stack([state_of(program)[f"site{i}.lora_B"] for i in range(2)]).double()
    assert float((found - textbook.weights).abs().max() / textbook.weights.abs().max()) < 1e-5


@pytest.mark.parametrize(("clip", "polyak"), [(0.5, 0.0), (0.0, 0.2)])
@pytest.mark.parametrize("rule", ["norm", "momentum", "adamw"])
def test_parity_of_several_calls_with_the_textbook(rule: str, clip: float, polyak: float) -> None:
    """Steps of three, one and two calls: one step each, of the mean gradient and the mean loss; others move nothing."""
    each = InsertOptimizer(rule=rule, clip=clip, decay=0.1, polyak=polyak, accumulate=True)
    program = example()
    pulls, rows = [], []
    for seed in range(3):
        rows.append(row_inputs(program, seed=seed))
        pulls.append(program.module.get_buffer("embed.weight")[rows[-1][0]].mean((0, 1)).double())
    run_pass(program, each)
    textbook = Textbook(each, torch.zeros(2, 4, dtype=torch.float64))
    for lr, num_calls in zip(RATES, (3, 1, 2), strict=True):
        losses = []
        for before in range(num_calls):
            held = {name: value.clone() for name, value in state_of(program).items() if not name.endswith("_sum")}
            is_last = before + 1 == num_calls
            found, factors = run(program, (*rows[before], torch.tensor(lr), torch.tensor([before, int(is_last)])))
            losses.append(float(found.mean()))
            moved = [name for name, value in held.items() if not torch.equal(value, state_of(program)[name])]
            assert bool(moved) == is_last == bool(factors[0] > 0)
        mean = torch.stack([textbook.weights + pull for pull in pulls[:num_calls]]).mean(0)
        assert float(factors[1]) == pytest.approx(textbook.step(mean, lr, sum(losses) / num_calls), rel=1e-5)
    found = state_of(program)["site0.lora_B"].double()
    assert float((found - textbook.weights).abs().max() / textbook.weights.abs().max()) < 1e-5


class Textbook:
    """The three rules in f64, as papers write them."""

    def __init__(self, each: InsertOptimizer, weights: Tensor) -> None:
        self.each, self.weights = each, weights
        self.mean, self.square, self.rms, self.steps = torch.zeros_like(weights), torch.zeros_like(weights), 0.0, 0

    def step(self, gradient: Tensor, lr: float, loss: float) -> float:
        each, self.steps = self.each, self.steps + 1
        norm = float(gradient.norm())
        g = gradient * min(1.0, each.clip / norm) if each.clip else gradient
        start1, start2 = 1 - each.beta1**self.steps, 1 - each.beta2**self.steps
        self.rms = each.beta2 * self.rms + (1 - each.beta2) * float(g.square().mean())
        if each.rule != "adamw":
            g = g / (self.rms / start2) ** 0.5
            if (aim := lr * float((g * gradient).sum())) > each.polyak * loss > 0.0:
                g = g * (each.polyak * loss / aim)
        self.mean = each.beta1 * self.mean + (1 - each.beta1) * g
        self.square = each.beta2 * self.square + (1 - each.beta2) * g.square()
        # Each element of a step moves by lr at most, about: Cauchy and Schwarz bound what it aims at.
        most_aimed_at = lr * norm * gradient.numel() ** 0.5
        shorter = min(1.0, each.polyak * loss / most_aimed_at) if each.polyak * loss > 0 else 1.0
        directions = {
            "norm": g,
            "momentum": self.mean / start1,
            "adamw": shorter * self.mean / start1 / ((self.square / start2).sqrt() + each.eps),
        }
        self.weights = (1 - lr * each.decay) * self.weights - lr * directions[each.rule]
        return norm
