"""A delegate's graph as XNNPACK's bytes, by XNNPACK's own node visitors.

ExecuTorch's preprocessing writes `linear` for `mm` and `addmm`, drops views around it, and traces the graph again. The
edits alone are enough. All delegates of a compilation keep their weights in one store: methods share most of them.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_origin, get_type_hints

from executorch.backends.transforms.addmm_mm_to_linear import apply_addmm_mm_to_linear_transform
from executorch.backends.xnnpack.operators.node_visitor import get_node_visitors
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import ConstantDataOffset, XNNGraph
from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import serialize_xnnpack_binary
from executorch.backends.xnnpack.xnnpack_preprocess import DEFAULT_DEBUG_HANDLE, generate_node_to_external_map
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import PreprocessResult
from torch.export import ExportedProgram
from torch.fx import Graph

from prgec.errors import BackendError, InternalError
from prgec.passes.lifted import EditedModule


def serialize(program: ExportedProgram, weights: NamedDataStore) -> PreprocessResult:
    """Return the bytes of one delegate; its weights go to `weights`.

    Args:
        program: The part that was cut out of an edge program.
        weights: Store of all delegates.

    Raises:
        BackendError: For an op that XNNPACK has no visitor for.
    """
    nodes = Graph()
    nodes.output(nodes.graph_copy(program.graph, {}))
    # The program keeps its own graph, which reports count ops of.
    module = EditedModule({}, apply_addmm_mm_to_linear_transform(nodes))
    externals = generate_node_to_external_map(program, module)
    graph = XNNGraph(
        version="0",
        xnodes=[],
        xvalues=[],
        num_externs=len(externals),
        input_ids=[],
        output_ids=[],
        constant_data=[ConstantDataOffset(0, 0)],
    )
    ids: dict[object, int] = {}
    visitors = get_node_visitors(program, externals, weights)
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        visitor = visitors.get(node.target.__name__)
        if visitor is None:
            raise BackendError(f"XNNPACK cannot serialise {node.target.__name__}", hint="compile with --lowering stock")
        visitor.define_node(node, graph, ids, node.meta.get("debug_handle", DEFAULT_DEBUG_HANDLE))
    return PreprocessResult(
        processed_bytes=serialize_xnnpack_binary(_plain_parts(graph), bytearray()),
        debug_handle_map={},
        data_store_output=weights.get_named_data_store_output(),
    )


def _plain_parts(graph: XNNGraph) -> XNNGraph:
    """Return the graph with dictionaries in its lists, as XNNPACK's encoder would write them.

    That encoder resolves the type hints of a class for every field of every node: half the time of a lowering.
    """
    parts = {field.name: _plain(getattr(graph, field.name)) for field in fields(graph)}
    return XNNGraph(**parts)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        plain = {}
        for name, is_union in _fields_of(type(value)):
            part = getattr(value, name)
            plain[name] = _plain(part)
            if is_union:
                plain[f"{name}_type"] = type(part).__name__
        return plain
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise InternalError(f"a delegate's graph holds a {type(value).__name__}, which cannot be serialised")


@cache
def _fields_of(kind: type) -> tuple[tuple[str, bool], ...]:
    """Name of each field, and whether its type is a union, which the file names."""
    hints = get_type_hints(kind)
    return tuple(
        (field.name, isinstance(field.type, str) and get_origin(hints[field.name]) is Union) for field in fields(kind)
    )
