"""Graphs of named leaves, whose gradients are requested, and constants."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import Node

from prgec.passes.derivatives import RULES
from prgec.passes.program import GraphProgram
from prgec.passes.reverse import gradients
from prgec.passes.rewrite import Rewriter
from tests.passes.builder import GraphBuilder

aten = torch.ops.aten
ROWS, WIDTH, LENGTH = 2, 4, 6
RULE = "differentiate"
MakeNode = Callable[["Leaves"], Node]


class Leaves(GraphBuilder):
    """Builds such a graph."""

    def leaf(self, *shape: int) -> Node:
        """Add a leaf of fixed shape."""
        return self.input(self._name(), torch.zeros(shape))

    def leaf_T(self, width: int = WIDTH) -> Node:
        """Add a leaf f32[N, T, width]."""
        like = self.hidden(width, name=f"like{width}")
        return Rewriter(self.program, RULE).input_like(self._name(), like)

    def constant(self, *shape: int) -> Node:
        """Add a constant of normals, different from every other."""
        return self.weight(f"constant{len(list(self.program.module.buffers()))}", *shape)

    def leaves(self) -> list[Node]:
        """All leaves, first one first."""
        return self.program.placeholders()[3:]

    def _name(self) -> str:
        return f"leaf{len(self.leaves())}"


def unary(op: Callable[..., Tensor], *arguments: object) -> MakeNode:
    """One leaf f32[3, 5]."""
    return lambda b: b.call(op, b.leaf(3, 5), *arguments)


def binary(
    op: Callable[..., Tensor], first: tuple[int, ...] = (2, 3, 4), second: tuple[int, ...] = (2, 3, 4)
) -> MakeNode:
    """Two leaves."""
    return lambda b: b.call(op, b.leaf(*first), b.leaf(*second))


def scores(b: Leaves) -> Node:
    """f32[N, T, T]."""
    return b.call(aten.bmm.default, b.leaf_T(), b.call(aten.transpose.int, b.leaf_T(), 1, 2))


def program_of(make: MakeNode) -> GraphProgram:
    """The graph that returns what `make` makes, with a T that varies."""
    b = Leaves(num_rows=ROWS, seq_len=LENGTH, dynamic=True)
    return b.done(make(b))


def differentiate(program: GraphProgram, *, half: bool = False) -> None:
    """Let a graph return the gradients of its leaves, with the gradient of its result as the last input.

    It computes in f64, or with `half` in f16.
    """
    leaves, end = program.placeholders()[3:], program.graph.output_node()
    (result,) = end.all_input_nodes
    rewriter = Rewriter(program, RULE)
    seed = rewriter.input_like("seed", result)
    with rewriter.before(end):
        found = gradients(rewriter, RULES, {result: seed}, leaves, half=half)
    rewriter.return_values([found[leaf] for leaf in leaves])
    program.finish()
    program.module.to(torch.float16 if half else torch.float64)
