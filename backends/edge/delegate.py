"""Puts delegates into an edge program, in the place of what a partitioner chose, without copying a weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.canonical_partitioners.duplicate_constant_node_pass import duplicate_constant_node
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner
from executorch.exir.delegate import get_lowered_module_name
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from prgec.backends.edge.cut import Cut, cut_out
from prgec.backends.edge.edit import sort_users
from prgec.passes.lifted import LiftedProgram

_TAG = "delegation_tag"
_HANDLE = "debug_handle"

# Makes the bytes of one delegate of what was cut out.
Preprocess: TypeAlias = Callable[[ExportedProgram], PreprocessResult]


def delegate(program: LiftedProgram, partitioner: Partitioner, preprocess: Preprocess) -> None:
    """Replace the partitions of an edge program by delegates, in place.

    Args:
        program: Edge program.
        partitioner: Chooses the partitions.
        preprocess: Makes a delegate.
    """
    sort_users(program.graph)
    found = partitioner.partition(program)
    for tag in found.partition_tags:
        _copy_shared_constants(program, tag)
    cuts = {}
    for tag, spec in found.partition_tags.items():
        cut = _cut_partition(program, tag)
        if cut is not None:
            cuts[cut.call] = cut, spec
    # ExecuTorch cuts by tag and lowers by place: names of delegates, and so the file, follow the order of the graph.
    for call in [node for node in program.graph.nodes if node in cuts]:
        _lower_partition(program, *cuts[call], preprocess)
    for node in program.graph.nodes:
        node.meta.pop(_TAG, None)


def _copy_shared_constants(program: LiftedProgram, tag: str) -> None:
    """Give a partition inputs of its own for constants that something outside reads too."""
    shared = [
        node.name
        for node in program.graph.nodes
        if node.op == "placeholder"
        and node.meta.get(_TAG) == tag
        and any(user.meta.get(_TAG) != tag for user in node.users)
    ]
    names = set(shared).union(*(duplicate_constant_node(program, name) for name in shared))
    for node in program.graph.nodes:
        if node.name in names:
            tags = {user.meta.get(_TAG) for user in node.users}
            if len(tags) == 1:
                node.meta[_TAG] = tags.pop()


def _cut_partition(program: LiftedProgram, tag: str) -> Cut | None:
    """A partition outside its program; none if it is a weight alone, with its readers elsewhere."""
    nodes = [node for node in program.graph.nodes if node.meta.get(_TAG) == tag]
    return cut_out(program, nodes) if any(node.op == "call_function" for node in nodes) else None


def _lower_partition(program: LiftedProgram, cut: Cut, spec: DelegationSpec, preprocess: Preprocess) -> None:
    done = preprocess(cut.part)
    lowered = LoweredBackendModule(
        edge_program=cut.part,
        backend_id=spec.backend_id,
        processed_bytes=done.processed_bytes,
        compile_specs=list(spec.compile_specs),
        named_data_store_output=done.data_store_output,
    )
    lowered.meta = {"debug_handle_map": done.debug_handle_map}
    cut.call.meta[_HANDLE] = max((node.meta.get(_HANDLE, 0) for node in program.graph.nodes), default=0) + 1
    with program.graph.inserting_before(cut.call):
        reference = program.graph.get_attr(get_lowered_module_name(program.graph_module, lowered))
    cut.call.args = (reference, *cut.call.args)
