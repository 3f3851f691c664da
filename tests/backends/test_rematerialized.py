"""Copies are computed late: ExecuTorch sorts a delegate's operations, and XNNPACK runs them so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.fx import Node

from prgec.backends import load_backend
from prgec.backends.lowering import lower
from prgec.passes.differentiate import Differentiate
from prgec.passes.rematerialize import Rematerialize
from prgec.passes.reshape_to_view import ReshapeToView
from prgec.passes.transpose_to_copy import TransposeToCopy
from tests.passes.golden import run_pass
from tests.passes.gradient_graphs import attention


@pytest.mark.parametrize("layers", [False, True])
def test_copies_stay_after_the_forward_in_a_delegate(layers: bool) -> None:
    program = attention(num_blocks=2, has_stream=layers)
    for each in (Differentiate(), Rematerialize(layers), TransposeToCopy(), ReshapeToView()):
        run_pass(program, each)
    lowered = lower(load_backend("xnnpack"), {"forward": program.to_exported()})
    assert len(lowered.delegation.delegates) == 1
    widths = [node.meta["val"].shape[-1] for node in delegated(lowered.edge.exported_program()) if is_softmax(node)]
    # Two blocks, the softmax of the loss over V, and two blocks again; those of blocks are over a T that varies.
    assert [isinstance(width, int) for width in widths] == [False, False, True, False, False]


def delegated(program: ExportedProgram) -> Iterator[Node]:
    for _, module in program.graph_module.named_modules():
        if isinstance(module, LoweredBackendModule):
            yield from module.original_module.graph.nodes


def is_softmax(node: Node) -> bool:
    return node.op == "call_function" and "softmax" in str(node.target)
