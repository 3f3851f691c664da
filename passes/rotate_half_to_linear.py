"""Turn RoPE's rotate_half into one product with a signed permutation.

Before (h = d/2):
    %0: f32[N, H, T, h] = aten.slice(%q, 3, 0, h)
    %1: f32[N, H, T, h] = aten.slice(%q, 3, h, end)
    %2: f32[N, H, T, h] = aten.neg(%1)
    %3: f32[N, H, T, d] = aten.cat([%2, %0], -1)
After:
    %0: f32[N, H, T, d] = aten.linear(%q, @folded.c0)

Requires: nothing. Ensures: nothing; graphs with a fixed T are left alone, where slices are cheaper and legal.
Numerics: EXACT (each output is one input times +-1 plus zeros).
Why: XNNPACK slices only tensors of fixed shape, so under a symbolic T every layer's RoPE would leave the delegate.
The product costs d multiplications an element, under 1 % of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier, rewrite_matches
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import dynamic_dims, is_same_shape, shape_of
from prgec.passes.shared_matrices import SharedMatrices

aten = torch.ops.aten


@dataclass(frozen=True)
class RotateHalfToLinear(Pass):
    """Replace rotate_half of tensors whose shape depends on T."""

    name: ClassVar[str] = "rotate-half-to-linear"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every rotation; equal widths share their matrix."""
        matrices = SharedMatrices(Rewriter(program, self.name))

        def rewrite(found: Rotation) -> None:
            width = int(shape_of(found.source)[-1])
            matrices.replace(found.node, found.source, width, lambda: rotation(width))

        return rewrite_matches(program, map(match, program.calls(aten.cat.default)), rewrite)


@dataclass(frozen=True)
class Rotation:
    """A `cat([-x[h:], x[:h]], -1)` and its x."""

    node: Node
    source: Node


def rotation(width: int) -> torch.Tensor:
    """The matrix R with `linear(x, R) = cat(-x[h:], x[:h])`, f32[d, d]."""
    half = width // 2
    matrix = torch.zeros(width, width)
    for i in range(half):
        matrix[i, half + i] = -1.0
        matrix[half + i, i] = 1.0
    return matrix


def turns_halves(program: GraphProgram, node: Node) -> bool:
    """Whether a node is such a product."""
    if node.target is not aten.linear.default or len(node.args) != 2:
        return False
    matrix, width = node.args[1], shape_of(node)[-1]
    if not isinstance(matrix, Node) or matrix.op != "get_attr" or shape_of(matrix) != (width, width):
        return False
    value = program.attribute(matrix)
    # One row identifies a layer; its weights may be large and still in a file.
    return int(value[0].count_nonzero()) == 1 and torch.equal(value, rotation(int(width)))


def match(node: Node) -> Rotation | None:
    """Return a rotation whose shape depends on T; None for any other concatenation."""
    parts = node.args[0]
    rank = len(shape_of(node))
    dim = node.args[1] if len(node.args) > 1 else 0
    if not isinstance(parts, list | tuple) or len(parts) != 2 or dim not in (-1, rank - 1):
        return None
    negated, first = parts
    if not isinstance(negated, Node) or negated.target is not aten.neg.default:
        return None
    second = negated.args[0]
    sources = {_half_of(second, 1), _half_of(first, 0)}
    source = sources.pop()
    if sources or source is None or not is_same_shape(shape_of(source), shape_of(node)) or not dynamic_dims(source):
        return None
    return Rotation(node, source)


def _half_of(node: object, which: int) -> Node | None:
    """The tensor whose first (0) or second (1) half along the last dimension `node` is."""
    if not isinstance(node, Node) or node.target is not aten.slice.Tensor:
        return None
    source, dim, start, end = (*node.args, None, None)[:4]
    if not isinstance(source, Node):
        return None
    width, rank = shape_of(source)[-1], len(shape_of(source))
    if not isinstance(width, int) or width % 2 or dim not in (-1, rank - 1):
        return None
    stop = width if end is None or (isinstance(end, int) and end > width) else end
    expected = (0, width // 2) if which == 0 else (width // 2, width)
    return source if (start or 0, stop) == expected else None
