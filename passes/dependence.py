"""Dependences of nodes: on rows, on state, on the inputs of a step.

The graph may come from a pass or from the tracer; the caller names the nodes that are rows and those that are state.
Reading a size is not a dependence: the number of rows and their length are the same whatever they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.fx import Node

from prgec.core.contract.names import HIDDEN_INPUT, ROW_INPUTS, WEIGHTS_INPUT

# Inputs with a value for each row, those of programs with label weights or a `prefix` method included.
ROWS = frozenset({*ROW_INPUTS, WEIGHTS_INPUT, HIDDEN_INPUT})


def upstream(nodes: Iterable[Node]) -> set[Node]:
    """`nodes` and everything their values depend on."""
    return _reached(nodes, lambda node: node.all_input_nodes)


def downstream(nodes: Iterable[Node]) -> set[Node]:
    """`nodes` and everything whose value depends on one of them."""
    return _reached(nodes, lambda node: node.users)


def smoothly_downstream(nodes: Iterable[Node]) -> set[Node]:
    """`nodes` and everything that changes with them by little where they change by little.

    Whole numbers and truth values do not: which experts are chosen has no derivative, only how much they weigh.
    """
    return _reached(nodes, lambda node: [user for user in node.users if _is_floating(user)])


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    parts = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(part, torch.Tensor) and part.is_floating_point() for part in parts)


def updates_of(state: Iterable[Node], rows: Iterable[Node]) -> set[Node]:
    """Nodes that depend on state or on an input of the step, but on no row: they compute trained weights.

    Args:
        state: Reads of state, and inputs of the step.
        rows: Inputs that have a value for each row.
    """
    return downstream(state) - downstream(rows)


def _reached(nodes: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]]) -> set[Node]:
    reached: set[Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in reached and node.target is not torch.ops.aten.sym_size.int:
            reached.add(node)
            pending += neighbours(node)
    return reached
