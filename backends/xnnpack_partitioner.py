"""XNNPACK's partitioner, restricted to the forward up to the logits."""

from __future__ import annotations

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.partitioner import PartitionResult
from executorch.exir.dialects._ops import ops as exir_ops
from torch.export import ExportedProgram
from torch.fx import Node

_TAG = "delegation_tag"
_LOG_SOFTMAX = exir_ops.edge.aten._log_softmax.default


class ForwardPartitioner(XnnpackPartitioner):  # type: ignore[misc]  # executorch ships no types for it
    """Takes back what XNNPACK would take of the loss.

    The loss ends in a negation and a division that XNNPACK supports: two delegates of one op each, with a round
    trip through its thread pool and a packed workspace each, for N numbers.
    """

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Partition, then drop every tag behind the log-softmax."""
        result = super().partition(exported_program)
        tail = _behind_log_softmax(exported_program)
        for node in tail:
            node.meta.pop(_TAG, None)
        used = {node.meta[_TAG] for node in exported_program.graph.nodes if _TAG in node.meta}
        for tag in set(result.partition_tags) - used:
            del result.partition_tags[tag]
        return result


def _behind_log_softmax(exported_program: ExportedProgram) -> set[Node]:
    tail: set[Node] = set()
    for node in exported_program.graph.nodes:
        if node.target is _LOG_SOFTMAX or any(source in tail for source in node.all_input_nodes):
            tail.add(node)
    return tail
