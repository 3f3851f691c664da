"""Which outputs of a fused layer one of its readers takes.

A fused layer computes several projections at once; readers cut its last dimension, some of them after splitting it
into heads. Either way the outputs a reader sees form a regular set: the same columns of every head of one block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import shape_of

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns `start + h*stride + first + j` for every head h and 0 <= j < width.

    Attributes:
        start: Where the block of all heads begins.
        heads: Number of heads; 1 before the split into heads.
        stride: Columns of a whole head.
        first: First column taken of each head.
        width: Columns taken of each head.
    """

    start: int
    heads: int
    stride: int
    first: int
    width: int

    @property
    def count(self) -> int:
        """Number of columns."""
        return self.heads * self.width

    def cut(self, begin: int, end: int) -> Columns:
        """Take columns `begin` to `end` of those taken of each head."""
        return replace(self, first=self.first + begin, width=end - begin)

    def split(self, heads: int) -> Columns | None:
        """Split one contiguous run into heads; None where it is split already."""
        if self.heads != 1 or self.width % heads:
            return None
        width = self.width // heads
        return Columns(start=self.start + self.first, heads=heads, stride=width, first=0, width=width)

    def indices(self) -> torch.Tensor:
        """All columns in order, i64[count]."""
        heads = torch.arange(self.heads).unsqueeze(1) * self.stride
        return (heads + torch.arange(self.width) + self.start + self.first).reshape(-1)

    def pick(self, rewriter: Rewriter, matrix: Node, blocks: dict[tuple[int, int, int], Node]) -> Node:
        """Cut these columns out of f32[.., O], by slices and views of fixed shape only.

        Args:
            rewriter: Where to add nodes.
            matrix: Node whose last dimension holds all columns.
            blocks: Blocks of `matrix` split into heads so far; filled and shared by its cuts.
        """
        last = len(shape_of(matrix)) - 1
        if self.heads == 1:
            return _slice(rewriter, matrix, last, self.start + self.first, self.width)
        key = (self.start, self.heads, self.stride)
        if key not in blocks:
            block = _slice(rewriter, matrix, last, self.start, self.heads * self.stride)
            outer = list(shape_of(matrix)[:-1])
            blocks[key] = rewriter.call(aten.reshape.default, block, [*outer, self.heads, self.stride])
        taken = _slice(rewriter, blocks[key], last + 1, self.first, self.width)
        return rewriter.call(aten.reshape.default, taken, [*shape_of(matrix)[:-1], self.count])


def whole(size: int) -> Columns:
    """All columns of a dimension."""
    return Columns(start=0, heads=1, stride=size, first=0, width=size)


def _slice(rewriter: Rewriter, source: Node, dim: int, begin: int, width: int) -> Node:
    """A slice, or the value itself: a slice that takes everything would stay outside a delegate."""
    if shape_of(source)[dim] == width:
        return source
    return rewriter.call(aten.slice.Tensor, source, dim, begin, begin + width)
