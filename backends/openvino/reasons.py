"""Why an op is not in the OpenVINO delegate, by its place in the graph."""

from __future__ import annotations

from torch.export import ExportedProgram
from torch.fx import Node

from prgec.backends.sources import is_loss, is_update, sources_of

_UPDATE = "the state update, in memory the host reads"
_LOSS = "the f32 loss"
_UNSUPPORTED = "OpenVINO's PyTorch frontend has no such op"


def why_on_cpu(op: str, node: Node, program: ExportedProgram) -> str:
    """Return the reason in one clause.

    Args:
        op: Short name, such as `aten.embedding`.
        node: The call.
        program: Edge program it is in, after partitioning.
    """
    if op.startswith("prge.") or is_update(sources_of(node, program)):
        return _UPDATE
    return _LOSS if is_loss(node, program) else _UNSUPPORTED
