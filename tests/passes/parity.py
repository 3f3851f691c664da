"""Runs graphs before and after a pass and compares them as strictly as the pass's tier says."""

from __future__ import annotations

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


def assert_parity(program: GraphProgram, each: Pass) -> None:
    """Run at several T, rewrite, run again; a pass that does nothing proves nothing."""
    calls = [row_inputs(program, seed=length, seq_len=length) for length in seq_lens(program)]
    before = [run(program, inputs) for inputs in calls]
    assert run_pass(program, each).hits > 0
    for inputs, expected in zip(calls, before, strict=True):
        assert_close(run(program, inputs), expected, each.tier)


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
