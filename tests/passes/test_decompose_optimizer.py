from __future__ import annotations

import pytest
import torch

from prgec.errors import PassError
from prgec.passes.decompose_optimizer import DecomposeOptimizer
from prgec.passes.insert_optimizer import InsertOptimizer
from prgec.passes.program import GraphProgram
from tests.passes.builder import row_inputs
from tests.passes.golden import run_pass, transcript
from tests.passes.parity import run, state_of
from tests.passes.test_insert_optimizer import example as gradients

aten = torch.ops.aten
PASS = DecomposeOptimizer()
RATES = (0.1, 0.05, 0.2)
RULES = ("norm", "momentum", "adamw")


def example(rule: str = "norm", *, clip: float = 0.0, polyak: float = 0.2, num_sites: int = 1) -> GraphProgram:
    """A program that takes its own steps."""
    program = gradients(num_sites=num_sites)
    run_pass(program, InsertOptimizer(rule=rule, clip=clip, polyak=polyak, decay=0.1))
    return program


def parity(program: GraphProgram, each: DecomposeOptimizer) -> None:
    """Losses, factors and state after one step."""
    kernels = example()
    run_pass(program, each)
    rows = (*row_inputs(program)[:3], torch.tensor(0.1))
    for found, expected in zip(run(program, rows), run(kernels, rows), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    _assert_equal_state(program, kernels)


@pytest.mark.parametrize(("clip", "polyak"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.2)])
@pytest.mark.parametrize("rule", RULES)
def test_hit_takes_the_steps_of_the_kernels(rule: str, clip: float, polyak: float) -> None:
    """Three steps at three rates, of two sites."""
    found, expected = (example(rule, clip=clip, polyak=polyak, num_sites=2) for _ in range(2))
    assert run_pass(found, PASS).hits == 3
    rows = row_inputs(found)[:3]
    for lr in RATES:
        ours, kernels = (run(each, (*rows, torch.tensor(lr))) for each in (found, expected))
        torch.testing.assert_close(ours, kernels, rtol=1e-5, atol=1e-7)
    _assert_equal_state(found, expected)


@pytest.mark.parametrize("rule", RULES)
def test_hit_a_rate_of_zero_changes_nothing(rule: str) -> None:
    program = example(rule)
    run_pass(program, PASS)
    rows = row_inputs(program)[:3]
    run(program, (*rows, torch.tensor(0.1)))
    before = state_of(program)
    _, factors = run(program, (*rows, torch.tensor(0.0)))
    assert float(factors[0]) == 0.0 and torch.isfinite(factors).all()
    assert all(torch.equal(before[name], value) for name, value in state_of(program).items())


@pytest.mark.parametrize("rule", RULES)
def test_hit_what_is_not_finite_changes_nothing(rule: str) -> None:
    program = example(rule)
    run_pass(program, PASS)
    rows = row_inputs(program)[:3]
    run(program, (*rows, torch.tensor(0.1)))
    program.module.get_buffer("embed.weight")[rows[0][0, 0]] = torch.inf
    before = state_of(program)
    _, factors = run(program, (*rows, torch.tensor(0.1)))
    assert factors.tolist() == [0.0, torch.inf, 1.0, 1.0]
    assert all(torch.equal(before[name], value) for name, value in state_of(program).items())


def test_miss_without_steps() -> None:
    text = transcript(gradients(), PASS)
    assert "decompose-optimizer: 0 hits" in text or "unchanged" in text


def test_failure_a_step_is_left() -> None:
    assert "is still an op of prge" in PASS.ensures(example())[0]


def test_failure_steps_of_several_calls() -> None:
    program = gradients()
    run_pass(program, InsertOptimizer(accumulate=True))
    with pytest.raises(PassError, match="a step of several calls needs the kernels of prgec; leave out --accumulate"):
        PASS(program)


def test_failure_of_an_op_without_arithmetic() -> None:
    """Unknown ops stay, and no error is swallowed."""
    with pytest.raises(PassError, match="return-state: cannot run: .* updates its state inside"):
        from prgec.passes.return_state import ReturnState

        ReturnState()(example())


def _assert_equal_state(found: GraphProgram, expected: GraphProgram) -> None:
    wanted = state_of(expected)
    assert set(state_of(found)) == set(wanted)
    for name, value in state_of(found).items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-7)
