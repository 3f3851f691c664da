"""Why an op is not in the QNN delegate, by its place in the graph."""

from __future__ import annotations

from torch.export import ExportedProgram
from torch.fx import Node

from prgec.backends.sources import gradient_nodes, is_loss, is_update, sources_of

_UPDATE = "the state update, in f32 and in memory the host reads"
_LOSS = "the f32 loss; one in fp16 is too coarse to differ"
_UNSCALED = "it takes the loss scale off a gradient, in f32"
_UNSUPPORTED = "the HTP has no such op, or not in this shape or dtype"


def why_on_cpu(op: str, node: Node, program: ExportedProgram) -> str:
    """Return the reason in one clause.

    Args:
        op: Short name, such as `aten.embedding`.
        node: The call.
        program: Edge program it is in, after partitioning.
    """
    # Updates are checked first: those along a gradient come after the loss, since they depend on whether it is finite.
    if op.startswith("prge.") or is_update(sources_of(node, program)):
        return _UPDATE
    if node in gradient_nodes(program):
        return _UNSCALED
    return _LOSS if is_loss(node, program) else _UNSUPPORTED
