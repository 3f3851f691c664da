"""The op table refuses what it does not know in one line, with the way out."""

from __future__ import annotations

import pytest
import torch

from prgec.backends.edge.convert import to_edge
from prgec.errors import BackendError
from prgec.passes.lift import lift
from tests.passes.builder import GraphBuilder

aten = torch.ops.aten


def test_an_op_without_a_row_is_named_with_its_module() -> None:
    builder = GraphBuilder()
    weight = builder.tensor("w", torch.randn(4, 8))
    call = builder.call(aten.logcumsumexp.default, weight, 1)
    call.meta["nn_module_stack"] = {"0": ("hf.model.layers.3.mixer", "Mixer")}
    program = builder.done(call)
    with pytest.raises(BackendError) as refusal:
        to_edge(lift(program), frozenset(), lambda node: True)
    (text,) = str(refusal.value).splitlines()
    assert "the op table has no row for" in text and "logcumsumexp" in text
    assert "in model.layers.3.mixer" in text and "--lowering stock" in text


def test_a_row_that_a_delegate_takes_whole_stays() -> None:
    builder = GraphBuilder()
    weight = builder.tensor("w", torch.randn(4, 8))
    program = builder.done(builder.call(aten.logcumsumexp.default, weight, 1))
    edge = to_edge(lift(program), frozenset({aten.logcumsumexp.default}), lambda node: True)
    assert any("logcumsumexp" in str(node.target) for node in edge.graph.nodes)
