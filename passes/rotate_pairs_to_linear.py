"""Turn RoPE over neighbouring elements into one product with a signed permutation.

Before:
    %0: f32[N, H, T, h] = aten.slice(%q, 3, 0, end, 2)
    %1: f32[N, H, T, h] = aten.slice(%q, 3, 1, end, 2)
    %2: f32[N, H, T, h, 2] = aten.stack([aten.neg(%1), %0], -1)
    %3: f32[N, H, T, d] = aten.view(%2)
After:
    %0: f32[N, H, T, d] = aten.linear(%q, @folded.c0)

Requires: nothing. Ensures: nothing.
Numerics: EXACT (each output is one input times +-1 plus zeros).
Why: no delegate takes slices with a step, and a stack of rank 5 has no derivative. GPT-J, Cohere, GLM and ERNIE turn
neighbours where Llama turns halves (rotate-half-to-linear).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier, rewrite_matches
from prgec.passes.program import GraphProgram, argument
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import is_same_shape, shape_of
from prgec.passes.shared_matrices import SharedMatrices

aten = torch.ops.aten


@dataclass(frozen=True)
class RotatePairsToLinear(Pass):
    """Replace rotations of neighbouring elements."""

    name: ClassVar[str] = "rotate-pairs-to-linear"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"canonicalize"})

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every rotation; equal widths share their matrix."""
        matrices = SharedMatrices(Rewriter(program, self.name))

        def rewrite(found: PairRotation) -> None:
            width = int(shape_of(found.source)[-1])
            matrices.replace(found.node, found.source, width, lambda: pair_rotation(width))

        return rewrite_matches(program, map(match, program.calls(aten.view.default, aten.reshape.default)), rewrite)


@dataclass(frozen=True)
class PairRotation:
    """A `view(stack([-x[1::2], x[0::2]], -1))` and its x."""

    node: Node
    source: Node


def pair_rotation(width: int) -> torch.Tensor:
    """The matrix R with `linear(x, R)[2i] = -x[2i + 1]` and `linear(x, R)[2i + 1] = x[2i]`, f32[d, d]."""
    return torch.kron(torch.eye(width // 2), torch.tensor([[0.0, -1.0], [1.0, 0.0]]))


def match(node: Node) -> PairRotation | None:
    """Return a rotation of pairs; None for any other view."""
    stack = node.args[0]
    if not isinstance(stack, Node) or stack.target is not aten.stack.default:
        return None
    parts, dim = stack.args[0], argument(stack, 1, "dim", 0)
    if not isinstance(parts, list | tuple) or len(parts) != 2 or dim not in (-1, len(shape_of(stack)) - 1):
        return None
    negated, even = parts
    if not isinstance(negated, Node) or negated.target is not aten.neg.default:
        return None
    source = _every_second(even, 0)
    if source is None or _every_second(negated.args[0], 1) is not source:
        return None
    return PairRotation(node, source) if is_same_shape(shape_of(source), shape_of(node)) else None


def _every_second(node: object, first: int) -> Node | None:
    """The tensor of whose last dimension `node` has every second element from `first` on."""
    if not isinstance(node, Node) or node.target is not aten.slice.Tensor:
        return None
    source, dim = node.args[:2]
    start, end, step = (argument(node, i, name) for i, name in ((2, "start"), (3, "end"), (4, "step")))
    if not isinstance(source, Node) or dim not in (-1, len(shape_of(source)) - 1):
        return None
    width = shape_of(source)[-1]
    if not isinstance(width, int) or width % 2 or not (end is None or (isinstance(end, int) and end >= width)):
        return None
    return source if (start or 0, step) == (first, 2) else None
