"""Finds the residual stream: the sums a transformer's blocks write to, from the last one down.

In `h' = h + f(h)` the sum reads the stream `h` and a write `f(h)` that depends on it. That identifies the operands in
any architecture: attention and MLP in turn, both at once, with norms or scales around them, in one shape or in two
(OPT's MLPs take rows and tokens as one dimension). The stream ends where a sum has no such operand (an embedding of
tokens plus one of positions), or at a node that is not a sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from prgec.passes.dependence import upstream
from prgec.passes.shapes import is_same_shape, is_tensor, shape_of
from prgec.passes.sites import is_b

aten = torch.ops.aten


@dataclass(frozen=True)
class Write:
    """One sum of the stream.

    Attributes:
        total: The stream after the sum.
        stream: The stream before it.
        written: The value added to it.
    """

    total: Node
    stream: Node
    written: Node


def residual_writes(last: Node) -> list[Write]:
    """Return the writes to the stream that `last` depends on, first block first.

    Args:
        last: Any node after the last block, such as the logits.
    """
    writes: list[Write] = []
    total = _last_sum(last)
    while total is not None:
        write = as_write(total)
        assert write is not None
        writes.insert(0, write)
        before = _behind_views(write.stream)
        total = before if as_write(before) is not None else None
    return writes


def nearest_linears(written: Node) -> list[Node]:
    """The last linears of a written value, found by walking back from it: an output projection before its norm."""
    return [node for node in _nearest(written) if node.target is aten.linear.default]


def nearest_states(written: Node) -> list[Node]:
    """The B of the sites among these linears."""
    return [node for node in _nearest(written) if is_b(node)]


def _behind_views(node: Node) -> Node:
    while node.target in (aten.view.default, aten.reshape.default):
        node = node.all_input_nodes[0]
    return node


def _nearest(written: Node) -> list[Node]:
    """Nodes on the way back from what is written to the first linears, those included."""
    found, waiting = [written], [written]
    while waiting:
        node = waiting.pop()
        if node.target is not aten.linear.default:
            new = [each for each in node.all_input_nodes if each not in found]
            found += new
            waiting += new
    return found


def as_write(node: Node) -> Write | None:
    """A sum as a write to the stream; None for any other node."""
    if node.target is not aten.add.Tensor or len(node.args) != 2 or node.kwargs:
        return None
    first, second = node.args
    if not (is_tensor(first) and is_tensor(second)):
        return None
    assert isinstance(first, Node) and isinstance(second, Node)
    if first is second or not all(is_same_shape(shape_of(each), shape_of(node)) for each in (first, second)):
        return None
    if first in upstream([second]):
        return Write(node, first, second)
    return Write(node, second, first) if second in upstream([first]) else None


def _last_sum(node: Node) -> Node | None:
    """The last write before `node`, nearest first."""
    seen, layer = {node}, [node]
    while layer:
        found = next((each for each in layer if as_write(each) is not None), None)
        if found is not None:
            return found
        layer = [each for node in layer for each in node.all_input_nodes if each not in seen]
        seen.update(layer)
    return None
