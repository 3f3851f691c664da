"""Runs graphs before and after a pass and compares them as strictly as the pass's tier says."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from prgec.passes.infra import EXACT, Pass, Tier
from prgec.passes.program import GraphProgram
from tests.passes.builder import row_inputs, seq_lens
from tests.passes.golden import run_pass


def run(program: GraphProgram, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Call a graph."""
    with torch.no_grad():
        outputs: tuple[Tensor, ...] = program.module(*inputs)
    return outputs


def assert_parity(
    program: GraphProgram, each: Pass, *, inputs_of: Callable[..., tuple[Tensor, ...]] = row_inputs, appended: int = 0
) -> None:
    """Run at several T, rewrite, run again from the same state; a pass that does nothing proves nothing.

    Args:
        program: Graph to rewrite.
        each: The pass.
        inputs_of: Makes the inputs of a call, for passes that promise something on certain rows only.
        appended: Outputs the pass adds after the earlier ones.
    """
    calls = [inputs_of(program, seed=length, seq_len=length) for length in seq_lens(program)]
    start = state_of(program)
    before = [run(program, inputs) for inputs in calls]
    end = state_of(program)
    set_state(program, start)
    assert run_pass(program, each).hits > 0
    for inputs, expected in zip(calls, before, strict=True):
        actual = run(program, inputs)
        assert_close(actual[: len(actual) - appended], expected, each.tier)
    assert state_of(program).keys() == end.keys()
    assert_close(tuple(state_of(program).values()), tuple(end[name] for name in state_of(program)), each.tier)


def assert_close(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], tier: Tier) -> None:
    """Compare outputs: the same bits for EXACT, else within the tier's tolerance relative to the largest value."""
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert bool(torch.isfinite(theirs.to(torch.float64)).all()), "the example itself is not finite"
        if tier == EXACT:
            assert torch.equal(ours, theirs)
        else:
            error = (ours - theirs).abs().max() / theirs.abs().max()
            assert float(error) <= tier.tol, f"relative difference {float(error):.1e}"


def state_of(program: GraphProgram) -> dict[str, Tensor]:
    """Copies of the mutable state, by name."""
    return {name: program.module.get_buffer(name).clone() for name in program.state_names()}


def set_state(program: GraphProgram, state: dict[str, Tensor]) -> None:
    """Overwrite the mutable state."""
    for name, value in state.items():
        program.module.get_buffer(name).copy_(value)
