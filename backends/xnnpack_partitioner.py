"""XNNPACK's partitioner, restricted to the forward up to the logits and grouped into as few delegates as possible."""

from __future__ import annotations

from collections.abc import Set

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir.backend.backend_details import CompileSpec
from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import generate_partitions_from_list_of_nodes
from executorch.exir.backend.partitioner import DelegationSpec
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.passes.infra.partitioner import Partition

from prgec.backends.sources import loss_nodes, update_nodes

# With this key XNNPACK's preprocess runs one of its seventeen passes. The others are for images (bilinear sampling,
# batch norm, channels last), for quantised padding, and for attention patterns that lower-sdpa has replaced; each
# retraces the whole graph, and two of them export pattern graphs first: half the time of lowering a Llama.
_ONLY_CONVERT_TO_LINEAR = "dqlinear_partitioner"


class XnnpackForwardPartitioner(XnnpackPartitioner):  # type: ignore[misc]  # executorch ships no types for it
    """Chooses the same nodes as XNNPACK's own partitioner, less the loss and the updates, and merges them all.

    The loss ends in a negation and a division that XNNPACK supports: left in, they become two delegates of one op
    each, for N numbers. The update of dual state is arithmetic on step inputs and state, which would be a delegate
    before the forward's.

    XNNPACK's own grouping keeps the (de)quantisation of a layer next to it by never merging two groups that share a
    quantised input, and cuts a quantised Llama into two delegates a layer. Here every chain is supported as a
    whole, so the plain merge of everything that is supported keeps chains together too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(XnnpackBackend.__name__, [CompileSpec(_ONLY_CONVERT_TO_LINEAR, b"")])

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[OpOverload], None]:
        """Keep the ops XNNPACK has whole, every one of them.

        XNNPACK's own partitioner asks of each whether it can be delegated, for which ExecuTorch traces the whole graph
        twice more than without asking (`_gen_edge_manager_for_partitioners`). The passes leave none that cannot.
        """
        kept, _ = super().ops_to_not_decompose(ep)
        return kept, None

    def generate_partitions(self, ep: ExportedProgram) -> list[Partition]:
        """Merge all supported nodes between the updates and the log-softmax."""
        outside = loss_nodes(ep) | update_nodes(ep)
        groups = [[node for node in group if node not in outside] for group in self.get_matched_nodes_from_configs(ep)]
        groups = [group for group in groups if group]
        together = {node for group in groups for node in group}
        if together and fit_together(ep.graph, together):
            return [Partition(id=0, nodes=[node for node in ep.graph.nodes if node in together])]
        partitions: list[Partition] = generate_partitions_from_list_of_nodes(ep.graph_module, groups)
        return partitions


def fit_together(graph: Graph, nodes: Set[Node]) -> bool:
    """Whether nodes can be one delegate: nothing outside stands between two of them.

    An input of the program may be read on both sides: a delegate gets its own. The general search tries to merge each
    node with all others, which takes minutes where one walk is enough.
    """
    computed = {node for node in nodes if node.op != "placeholder"}
    between: set[Node] = set()
    for node in graph.nodes:
        reads_delegate = any(source in computed or source in between for source in node.all_input_nodes)
        if node not in nodes and reads_delegate:
            between.add(node)
        if node in nodes and not between.isdisjoint(node.all_input_nodes):
            return False
    return True
