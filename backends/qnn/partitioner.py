"""Qualcomm's partitioner, restricted to the forward up to the logits."""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.qualcomm.partition.qnn_partitioner import QnnPartitioner
from executorch.exir.backend.partitioner import PartitionResult
from torch.export import ExportedProgram
from torch.fx import Node

from prgec.backends.qnn.unsupported import check_in_one_piece
from prgec.backends.sources import LOG_SOFTMAX, gradient_nodes, row_nodes, target_nodes, untag_state, update_nodes
from prgec.passes.dependence import upstream


class QnnForwardPartitioner(QnnPartitioner):  # type: ignore[misc]  # executorch ships no types for it
    """Chooses what Qualcomm's own partitioner chooses, less the loss and the trainable state.

    A loss in fp16 moves in steps of 0.004, and differences of losses are all that training sees. The loss is left
    out node by node: its ops, such as negation, occur inside the model too. Updates stay in f32, in memory the host
    reads.
    """

    def __init__(self, specs: list[Any]) -> None:
        super().__init__(specs, skip_mutable_buffer=True)

    def generate_partitions(self, edge_program: ExportedProgram) -> list[Any]:
        """Partition the nodes before the log-softmax that the HTP supports."""
        inside = model_nodes(edge_program)
        self.skip_node_id_set = {node.name for node in edge_program.graph.nodes if node not in inside}
        found = super().generate_partitions(edge_program)
        # A partition that depends on no row is a constant or two; a graph without inputs cannot be compiled.
        rows = row_nodes(edge_program)
        partitions = [each for each in found if any(node in rows for node in each.nodes)]
        check_in_one_piece(inside, {node for partition in partitions for node in partition.nodes})
        return partitions

    def partition(self, edge_program: ExportedProgram) -> PartitionResult:
        """Keep B, which other methods share, out of the delegate."""
        result = super().partition(edge_program)
        untag_state(edge_program)
        return result

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], Any]:
        """Ops Qualcomm's partitioner takes undecomposed, without `stack`: dual updates stack, on the CPU."""
        whole, choose = super().ops_to_not_decompose(ep)
        return [op for op in whole if op is not torch.ops.aten.stack.default], choose


def model_nodes(program: ExportedProgram) -> set[Node]:
    """Return what computes logits and gradients (or the hidden state of a prefix) from rows and trained weights.

    The last op of a gradient is not among it: it takes the loss scale off, in f32, where no small number is lost. Nor
    is what is made of targets alone, which are integers to compare.
    """
    results = [node for node in program.graph.nodes if node.target is LOG_SOFTMAX] + gradient_nodes(program)
    inside = upstream(source for end in results or [program.graph.output_node()] for source in end.all_input_nodes)
    return inside - update_nodes(program) - target_nodes(program)
