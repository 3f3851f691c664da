"""Finds the loss in an edge program: what no delegate shall have."""

from __future__ import annotations

from executorch.exir.dialects._ops import ops as exir_ops
from torch.export import ExportedProgram
from torch.fx import Node

LOG_SOFTMAX = exir_ops.edge.aten._log_softmax.default


def behind_log_softmax(program: ExportedProgram) -> set[Node]:
    """Return the log-softmax of the logits and everything that depends on it."""
    tail: set[Node] = set()
    for node in program.graph.nodes:
        if node.target is LOG_SOFTMAX or any(source in tail for source in node.all_input_nodes):
            tail.add(node)
    return tail
