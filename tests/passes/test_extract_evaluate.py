"""The `evaluate` method: the losses of the present state, and nothing else."""

from __future__ import annotations

import pytest
import torch

from prgec.errors import InternalError
from prgec.passes.extract_evaluate import extract_evaluate
from prgec.passes.insert_optimizer import InsertOptimizer
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from prgec.passes.sites import state_inputs
from tests.passes import test_differentiate, test_insert_optimizer
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import run_pass
from tests.passes.parity import run, state_of

aten = torch.ops.aten


def _program() -> GraphProgram:
    program = test_differentiate.example()
    run_pass(program, test_differentiate.PASS)
    run_pass(program, test_insert_optimizer.PASS)
    return program


def test_only_the_losses_are_left() -> None:
    """No gradient, no update, no lr: the graph from before it was differentiated."""
    assert print_program(extract_evaluate(_program())) == print_program(test_differentiate.example())


def test_state_is_shared_and_the_forward_untouched() -> None:
    program = _program()
    before = print_program(program)
    evaluate = extract_evaluate(program)
    assert print_program(program) == before
    for name, buffer in evaluate.module.named_buffers():
        assert buffer is program.module.get_buffer(name), name
    assert evaluate.state_names() == []


def test_state_of_the_host_comes_in() -> None:
    program = test_differentiate.example()
    run_pass(program, test_differentiate.PASS)
    run_pass(program, InsertOptimizer(state="host"))
    rows = row_inputs(program)[:3]
    sites = [torch.randn(node.meta["val"].shape) for node in state_inputs(program)]
    evaluate = extract_evaluate(program)
    assert state_inputs(evaluate) and len(evaluate.placeholders()) == len(program.placeholders())
    assert torch.equal(run(evaluate, (*rows, *sites))[0], run(program, (*rows, *sites))[0])


def test_evaluates_the_present_state_and_changes_nothing() -> None:
    program = _program()
    evaluate = extract_evaluate(program)
    rows = row_inputs(evaluate)
    first, second = (run(evaluate, rows)[0] for _ in range(2))
    assert torch.equal(first, second)
    held = state_of(program)
    losses, _ = run(program, (*rows, torch.tensor(0.1)))
    assert torch.equal(losses, first)
    assert not any(torch.equal(held[name], value) for name, value in state_of(program).items())
    moved = state_of(program)
    after, again = run(evaluate, rows)[0], run(program, (*rows, torch.tensor(0.0)))[0]
    assert torch.equal(after, again) and not torch.equal(after, first)
    assert moved.keys() == held.keys()


def test_losses_that_depend_on_the_rate() -> None:
    b = GraphBuilder(num_rows=2)
    losses = b.call(aten.mul.Tensor, b.call(aten.mean.dim, b.hidden(), [1, 2]), b.input("lr", torch.zeros(())))
    with pytest.raises(InternalError, match="^the losses depend on the input lr"):
        extract_evaluate(b.done(losses))
