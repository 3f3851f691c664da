"""Why an op is in no delegate that `ForwardPartitioner` makes, by its place in the graph."""

from __future__ import annotations

from torch.export import ExportedProgram
from torch.fx import Node

from prgec.backends.sources import is_loss, is_update, sources_of

_UPDATE = "the state update, in memory the host reads"
_LOSS = "the f32 loss"
_CONSTANT = "a constant; it would be a delegate of its own"


def why_on_cpu(op: str, node: Node, program: ExportedProgram, no_op: str) -> str:
    """Return the reason in one clause.

    Args:
        op: Short name, such as `aten.embedding`.
        node: The call.
        program: Edge program it is in, after partitioning.
        no_op: Reason to give where the target has no such op.
    """
    sources = sources_of(node, program)
    if op.startswith("prge.") or is_update(sources):
        return _UPDATE
    if is_loss(node, program):
        return _LOSS
    return no_op if sources else _CONSTANT
