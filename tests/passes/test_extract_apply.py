"""The `apply` method: the update alone, with eps = 0."""

from __future__ import annotations

import pytest
import torch

from prgec.errors import InternalError
from prgec.passes.extract_apply import extract_apply
from prgec.passes.insert_self_update import InsertSelfUpdate
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass
from tests.passes.parity import run

aten = torch.ops.aten


def _program(state: str = "seeded") -> GraphProgram:
    b = GraphBuilder(num_rows=2, dynamic=True)
    program = b.done(b.dualized_site(b.hidden(), "site", q=1, rank=1, out=2))
    run_pass(program, InsertSelfUpdate(state=state))
    return program


def test_nothing_of_the_forward_is_left() -> None:
    expect(
        print_program(extract_apply(_program())),
        """\
graph(g: f32[1], lr: f32[], seed: i64[], step: i64[]):
  %0: i64[] = aten.sub(step, 1)
  %1: f32[1, 1, 2] = prge.randn(seed, %0, 0, 1, [1, 2])
  %2: f32[] = aten.div(lr, 1)
  %3: f32[1, 1, 1] = aten.view(g, [1, 1, 1])
  %4: f32[1, 1, 2] = aten.mul(%1, %3)
  %5: f32[1, 2] = aten.sum.dim_IntList(%4, [0])
  %6: f32[1, 2] = aten.mul(%5, %2)
  %7: f32[1, 2] = aten.sub(@site.lora_B, %6)
  %8: f32[1, 2] = aten.copy_(@site.lora_B, %7)
  return
""",
    )


@pytest.mark.parametrize("state", ["seeded", "dual"])
def test_state_is_shared_and_the_forward_untouched(state: str) -> None:
    program = _program(state)
    before = print_program(program)
    apply = extract_apply(program)
    assert print_program(program) == before
    buffer = program.module.get_buffer("site.lora_B")
    assert apply.module.get_buffer("site.lora_B") is buffer
    assert apply.state_names() == program.state_names()
    run(apply, (torch.ones(1), torch.tensor(0.1), torch.tensor(7), torch.tensor(4)))
    assert bool(buffer.any()) == (state == "seeded"), "dual state holds no noise before its first step"


def test_a_program_that_does_not_update_itself() -> None:
    b = GraphBuilder()
    with pytest.raises(InternalError, match="^the graph does not update itself; there is nothing to apply$"):
        extract_apply(b.done(b.hidden()))


def test_updates_that_depend_on_a_row() -> None:
    b = GraphBuilder()
    eps = b.input("eps", torch.zeros(()))
    total = b.call(aten.mul.Tensor, b.call(aten.sum.default, b.hidden()), eps)
    b.call(aten.copy_.default, b.tensor("site.lora_B", torch.zeros(())), total)
    with pytest.raises(InternalError, match="^the updates depend on the input tokens$"):
        extract_apply(b.done(total))
