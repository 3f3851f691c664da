"""A partitioner for delegates that take op by op: forward and gradients inside, updates and loss outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from prgec.backends.sources import forward_nodes, row_nodes, untag_state


class ForwardPartitioner(Partitioner):  # type: ignore[misc]  # executorch ships no types for it
    """Makes as few delegates as there are pieces of the forward that a target has all ops of.

    Args:
        delegate: Name ExecuTorch knows the delegate by.
        specs: Settings passed to the delegate.
        takes: Whether the target has a call, given that it belongs inside.
        whole: Ops that the target wants undecomposed, of a program.
    """

    def __init__(
        self,
        delegate: str,
        specs: Sequence[CompileSpec],
        takes: Callable[[Node], bool],
        whole: Callable[[ExportedProgram], list[OpOverload]] = lambda program: [],
    ) -> None:
        self.delegation_spec = DelegationSpec(delegate, list(specs))
        self._takes = takes
        self._whole = whole

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[OpOverload], None]:
        """Ops that the target takes undecomposed."""
        return self._whole(ep), None

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the nodes inside."""
        support = _Support(forward_nodes(exported_program), self._takes)
        proposed = CapabilityBasedPartitioner(
            exported_program.graph_module, support, allows_single_node_partition=True
        ).propose_partitions()
        # A partition that depends on no row is a constant or two.
        rows = row_nodes(exported_program)
        found = [each for each in proposed if not rows.isdisjoint(each.nodes)]
        tags = {}
        for partition in found:
            tag = f"{self.delegation_spec.backend_id}{partition.id}"
            tags[tag] = self.delegation_spec
            for node in partition.nodes:
                node.meta["delegation_tag"] = tag
        tag_constant_data(exported_program)
        untag_state(exported_program)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


class _Support(OperatorSupportBase):
    """Answers by node: what the target has, of what belongs inside."""

    def __init__(self, inside: set[Node], takes: Callable[[Node], bool]) -> None:
        self._inside = inside
        self._takes = takes

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        """Whether a call goes into a delegate."""
        del submodules
        return node.op == "call_function" and node in self._inside and self._takes(node)
