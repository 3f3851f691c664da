"""Walks a graph backwards: gradients of some nodes with respect to others, as nodes of the same graph.

Reverse-mode differentiation on the graph itself (Baydin et al., "Automatic Differentiation in Machine Learning: a
Survey", section 3.2). Only nodes on a path from a requested node to one with a gradient are visited, so nothing is
computed for frozen weights or for blocks below the first trained one. The derivative of each op is a row of the table
in `derivatives.py`.

Among nodes whose gradients are complete, matrix products go last. Element-wise derivatives run first and free their
operands, which lowers peak memory. In an MLP the activation's derivative comes before the products with its layers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from prgec.errors import PassError
from prgec.passes.dependence import smoothly_downstream, upstream
from prgec.passes.infra import describe
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import is_same_shape, shape_of, view_sizes

aten = torch.ops.aten


class GradientTape:
    """The graph as derivative rules see it, with the edits they may make.

    Args:
        rewriter: Adds nodes at the place of the walk.
        needed: Nodes whose gradient somebody waits for.
        half: Whether numbers have 16 bits where the graph will run.

    Attributes:
        call: Adds one op; short for `rewriter.call`.
    """

    def __init__(self, rewriter: Rewriter, needed: set[Node], half: bool = False) -> None:
        self.rewriter = rewriter
        self.half = half
        self.call = rewriter.call
        self._needed = needed
        self._gradients: dict[Node, Node] = {}

    def needs(self, node: object) -> bool:
        """Whether a gradient of `node` is of any use."""
        return isinstance(node, Node) and node in self._needed

    def gradient(self, node: Node) -> Node | None:
        """The whole gradient of a node whose users have all been visited; None where nothing depends on it."""
        return self._gradients.get(node)

    def add(self, node: Node, gradient: Node) -> None:
        """Add one user's share to the gradient of `node`."""
        so_far = self._gradients.get(node)
        self._gradients[node] = gradient if so_far is None else self.call(aten.add.Tensor, so_far, gradient)


Rule: TypeAlias = Callable[[GradientTape, Node, Node], Iterable[tuple[Any, Node]]]
Shares: TypeAlias = Iterator[tuple[Any, Node]]


def gradients(
    rewriter: Rewriter,
    rules: Mapping[Any, Rule],
    seeds: Mapping[Node, Node],
    wrt: Sequence[Node],
    *,
    half: bool = False,
) -> dict[Node, Node]:
    """Add the nodes that compute gradients.

    Args:
        rewriter: Adds them at its position, which must be after every visited node.
        rules: Op -> its derivative: `rule(tape, node, gradient)` yields (argument, share of its gradient) for the
            arguments that need one.
        seeds: Node -> the node that holds its gradient, to begin with; in its shape, or to be viewed in it.
        wrt: Nodes whose gradients are requested.
        half: Whether numbers have 16 bits where the graph will run.

    Returns:
        Gradient of each of `wrt` that a seed depends on.

    Raises:
        PassError: If an op on the way has no rule, naming it and its place.
    """
    # These lie on a path from a requested node to one with a gradient.
    needed = smoothly_downstream(wrt) & upstream(seeds)
    tape = GradientTape(rewriter, needed, half)
    for node, seed in seeds.items():
        is_same = is_same_shape(shape_of(node), shape_of(seed))
        tape.add(node, seed if is_same else rewriter.call(aten.view.default, seed, view_sizes(shape_of(node))))
    leaves = set(wrt)
    for node in _whole_gradients(rewriter.program.graph.nodes, needed):
        gradient = tape.gradient(node)
        if node in leaves or gradient is None:
            continue
        rule = rules.get(node.target)
        if rule is None:
            raise PassError(
                f"{rewriter.rule}: there is no derivative of {describe(node)}",
                hint="train fewer layers, so that no gradient passes it, or use method prge",
            )
        for source, share in rule(tape, node, gradient):
            tape.add(source, share)
    return {node: found for node in wrt if (found := tape.gradient(node)) is not None}


def _whole_gradients(nodes: Iterable[Node], needed: set[Node]) -> Iterator[Node]:
    """The nodes of `needed`, each after its users: last first, but products after all others."""
    number_of = {node: number for number, node in enumerate(nodes) if node in needed}
    node_of = {number: node for node, number in number_of.items()}
    waiting = {node: len(needed.intersection(node.users)) for node in number_of}
    ready = [(_is_product(node), -number_of[node]) for node, users in waiting.items() if not users]
    heapq.heapify(ready)
    while ready:
        _, number = heapq.heappop(ready)
        node = node_of[-number]
        yield node
        for source in needed.intersection(node.all_input_nodes):
            waiting[source] -= 1
            if not waiting[source]:
                heapq.heappush(ready, (_is_product(source), -number_of[source]))


def _is_product(node: Node) -> bool:
    return node.target in (aten.linear.default, aten.bmm.default)
