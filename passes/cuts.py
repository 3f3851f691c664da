"""Reads a cut of the last dimension, whichever op makes it: slice, split or chunk."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch.fx import Node

from prgec.passes.program import argument
from prgec.passes.shapes import shape_of

aten = torch.ops.aten

SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)


@dataclass(frozen=True)
class ColumnCut:
    """Elements `begin` to `end` of the last dimension of `source`, held by `node`."""

    node: Node
    source: Node
    begin: int
    end: int


def cuts_of(node: Node) -> list[ColumnCut] | None:
    """The columns that a call cuts out of its first argument's last dimension; None for any other call."""
    if node.target is not aten.slice.Tensor and node.target not in SPLITS:
        return None
    source = node.args[0]
    assert isinstance(source, Node)
    rank, size = len(shape_of(source)), shape_of(source)[-1]
    is_slice = node.target is aten.slice.Tensor
    dim = argument(node, 1 if is_slice else 2, "dim", 0)
    if not isinstance(size, int) or not isinstance(dim, int) or dim % rank != rank - 1:
        return None
    return _slice(node, source, size) if is_slice else _parts(node, source)


def _slice(node: Node, source: Node, size: int) -> list[ColumnCut] | None:
    start, end, step = (argument(node, i, name) for i, name in ((2, "start"), (3, "end"), (4, "step")))
    if step not in (None, 1) or not isinstance(start, int | None) or not isinstance(end, int | None):
        return None
    begin, stop, _ = slice(start, end).indices(size)
    return [ColumnCut(node, source, begin, stop)] if begin < stop else None


def _parts(node: Node, source: Node) -> list[ColumnCut] | None:
    """The parts of a split that are read; their sizes are those of the op's own results."""
    ends = [0]
    for part in node.meta["val"]:
        ends.append(ends[-1] + int(part.shape[-1]))
    items = [user for user in node.users if user.target is operator.getitem]
    cuts = []
    for item in items:
        index = item.args[1]
        assert isinstance(index, int)
        cuts.append(ColumnCut(item, source, ends[index], ends[index + 1]))
    return cuts
