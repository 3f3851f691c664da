"""Writes to state: functional while a graph is cut into delegates, in place again in the program.

A call that writes its arguments becomes `auto_functionalized_v2`, which returns the new values, so that the order of
reads and writes is in the graph itself while nodes are moved. It is the form that torch.export gives, and what the
partitioners look for.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg

from prgec.backends.edge.edit import SOURCE, Edit
from prgec.passes.program import is_mutation

aten = torch.ops.aten
FUNCTIONAL = torch.ops.higher_order.auto_functionalized_v2


def to_functional(edit: Edit) -> dict[Node, Node]:
    """Replace every call that writes; return the newest value of each input that is written, in order of the inputs.

    Args:
        edit: Graph in core ATen form, whose state is inputs.
    """
    newest: dict[Node, Node] = {}
    for node in list(edit.graph.nodes):
        if node.op != "call_function":
            continue
        if newest:
            node.args, node.kwargs = (map_arg(part, lambda n: newest.get(n, n)) for part in (node.args, node.kwargs))
        if node.target is aten.copy_.default:
            # State has one shape and one dtype: the new value is what is copied.
            root, value = _root(newest, node.args[0]), node.args[1]
            assert isinstance(value, Node)
            newest[root] = value
            node.replace_all_uses_with(value)
            edit.graph.erase_node(node)
        elif is_mutation(node):
            _wrap(edit, node, newest)
    return {node: newest[node] for node in edit.graph.nodes if node in newest}


def _root(newest: dict[Node, Node], value: Any) -> Node:
    found = next((root for root, latest in newest.items() if latest is value), value)
    assert isinstance(found, Node)
    return found


def _wrap(edit: Edit, node: Node, newest: dict[Node, Node]) -> None:
    op = node.target
    assert isinstance(op, OpOverload)
    given = _by_name(op, node)
    written = [declared.name for declared in op._schema.arguments if _is_written(declared)]
    bases = [given.pop(name) for name in written]
    indices = {f"_{name}_base_index": index for index, name in enumerate(written)}
    results = node.meta["val"]
    returned = () if not op._schema.returns else results if isinstance(results, tuple | list) else (results,)
    with edit.graph.inserting_before(node):
        wrapped = edit.graph.call_function(FUNCTIONAL, (op,), {**given, **indices, "_all_bases": bases})
    wrapped.meta[SOURCE] = node.meta[SOURCE]
    wrapped.meta["val"] = (*(returned or (None,)), *(base.meta["val"] for base in bases))
    if len(returned) == 1:
        node.replace_all_uses_with(_part(edit, node, wrapped, 0))
    first_base = len(returned) or 1
    for index, base in enumerate(bases):
        newest[_root(newest, base)] = _part(edit, node, wrapped, first_base + index)
    edit.graph.erase_node(node)


def _part(edit: Edit, before: Node, wrapped: Node, index: int) -> Node:
    with edit.graph.inserting_before(before):
        part = edit.graph.call_function(operator.getitem, (wrapped, index))
    part.meta[SOURCE] = wrapped.meta[SOURCE]
    part.meta["val"] = wrapped.meta["val"][index]
    return part


def _by_name(op: OpOverload, node: Node) -> dict[str, Any]:
    declared = op._schema.arguments
    given = dict(zip((each.name for each in declared), node.args, strict=False))
    return {each.name: {**given, **node.kwargs}.get(each.name, each.default_value) for each in declared}


def _is_written(declared: Any) -> bool:
    return declared.alias_info is not None and declared.alias_info.is_write


def to_in_place(graph: torch.fx.Graph) -> None:
    """Write to state in place again, after the delegates are cut out: the inverse of `to_functional`.

    A call may take the place of its functional form as it stands: by then, no node reads a value of state after it was
    overwritten, as each reads the newest one.
    """
    for node in graph.find_nodes(op="call_function", target=FUNCTIONAL):
        op = node.args[0]
        given = dict(node.kwargs)
        bases = given.pop("_all_bases")
        for name in [name for name in given if name.startswith("_") and name.endswith("_base_index")]:
            given[name.removeprefix("_").removesuffix("_base_index")] = bases[given.pop(name)]
        with graph.inserting_before(node):
            call = graph.call_function(op, tuple(given[each.name] for each in op._schema.arguments))
        call.meta = {**node.meta}
        num_returned = len(op._schema.returns)
        call.meta["val"] = node.meta["val"][:num_returned][0] if num_returned == 1 else node.meta["val"][:num_returned]
        for user in list(node.users):
            index = user.args[1]
            if num_returned == 1 and index == 0:
                user.replace_all_uses_with(call)
            elif index >= max(num_returned, 1):
                user.replace_all_uses_with(bases[index - max(num_returned, 1)])
            else:
                user.args = (call, index)
                continue
            graph.erase_node(user)
        graph.erase_node(node)
