"""The edits that a rule of the op table may make: add nodes before one, and replace it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from prgec.backends.edge.values import Values

# Number of the node of the passes' graph that a node was made from; ExecuTorch's debug handles follow it.
SOURCE = "prgec_source"


class Edit:
    """Edits of one graph.

    Args:
        graph: Graph to change.
        values: Fake values of its nodes.
    """

    def __init__(self, graph: Graph, values: Values) -> None:
        self.graph = graph
        self.values = values

    def add(self, before: Node, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """Add a call before a node whose source it shares; its value comes from running it on fake values."""
        with self.graph.inserting_before(before):
            node = self.graph.call_function(op, args, kwargs)
        node.meta[SOURCE] = before.meta[SOURCE]
        node.meta["val"] = self.values.result(op, args, kwargs)
        return node

    def become(self, node: Node, op: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Turn a node into another call with the same value."""
        node.target, node.args, node.kwargs = op, args, kwargs

    def replace(self, node: Node, new: Node) -> None:
        """Let `new` take the place of a node."""
        node.replace_all_uses_with(new)
        self.graph.erase_node(node)


def sizes_of(shape: Any) -> list[int]:
    """Sizes for a view to `shape`; the one size that depends on T, if there is one, becomes -1."""
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    assert sizes.count(-1) <= 1, "a view has at most one inferred size"
    return sizes


def shape_of(node: Node) -> tuple[int | torch.SymInt, ...]:
    """Shape of a node's value."""
    return tuple(node.meta["val"].shape)


def sort_users(graph: Graph) -> None:
    """Give each node its users in the order of the graph, as a copy or a trace does: searches break ties by it."""
    position = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        users = sorted(node.users, key=position.__getitem__)
        node.users.clear()
        node.users.update(dict.fromkeys(users))
