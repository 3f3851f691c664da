"""The code of a graph is written when it runs, and is that of the last edit."""

from __future__ import annotations

import copy
import inspect

import torch

from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from tests.passes.builder import GraphBuilder, row_inputs

aten = torch.ops.aten


def _program() -> GraphProgram:
    b = GraphBuilder()
    return b.done(b.call(aten.mul.Tensor, b.hidden(), 2.0))


def _triple(program: GraphProgram) -> None:
    (product,) = program.calls(aten.mul.Tensor)
    Rewriter(program, "test").set_arg(product, 1, 3.0)
    program.finish()


def test_nobody_writes_code_before_it_runs() -> None:
    program = _program()
    _triple(program)
    assert "_code" not in vars(program.module)
    program.module(*row_inputs(program))
    assert "mul.Tensor" in program.module.code


def test_code_follows_edits() -> None:
    program = _program()
    rows = row_inputs(program)
    (doubled,) = program.module(*rows)
    _triple(program)
    (tripled,) = program.module(*rows)
    assert torch.equal(tripled, doubled / 2.0 * 3.0)


def test_each_module_has_code_of_its_own() -> None:
    program = _program()
    other = GraphProgram(copy.deepcopy(program.module))
    rows = row_inputs(program)
    (doubled,) = program.module(*rows)
    _triple(other)
    assert torch.equal(program.module(*rows)[0], doubled)
    assert not torch.equal(other.module(*rows)[0], doubled)


def test_inputs_are_named_before_anything_ran() -> None:
    assert list(inspect.signature(_program().module.forward).parameters) == ["tokens", "label_pos", "targets"]
