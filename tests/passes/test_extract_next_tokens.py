"""The `next_tokens` method: the forward up to its logits, and the most likely token of each."""

from __future__ import annotations

import pytest
import torch

from prgec.errors import InternalError
from prgec.passes.extract_next_tokens import extract_next_tokens
from prgec.passes.insert_self_update import InsertSelfUpdate
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import run_pass

aten = torch.ops.aten


def _program() -> GraphProgram:
    b = GraphBuilder(num_rows=2)
    hidden = b.dualized_site(b.hidden(), "site", q=1, rank=1, out=2)
    log_probs = b.call(aten.log_softmax.int, hidden, -1)
    loss = b.call(aten.gather.default, log_probs, 1, b.call(aten.unsqueeze.default, b.targets, -1))
    program = b.done(b.call(aten.neg.default, loss))
    run_pass(program, InsertSelfUpdate(state="seeded"))
    return program


def test_only_the_end_differs_from_the_forward() -> None:
    program = _program()
    before = print_program(program).splitlines()
    after = print_program(extract_next_tokens(program)).splitlines()
    assert print_program(program).splitlines() == before
    assert "targets" not in after[0]
    shared = next(i for i, line in enumerate(before) if "log_softmax" in line)
    assert after[1:shared] == before[1:shared]
    assert "aten.argmax" in after[shared]
    assert after[shared + 1].startswith("  return")
    assert any("copy_" in line for line in after), "the state keeps its updates"


def test_a_program_without_logits() -> None:
    b = GraphBuilder()
    with pytest.raises(InternalError, match="^the graph has no log_softmax, so its logits cannot be found$"):
        extract_next_tokens(b.done(b.hidden()))
