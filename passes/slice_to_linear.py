"""Cut the last dimension of activations by a product with the rows of an identity.

Before:
    %0: f32[N, H, T, w] = aten.slice(%q, 3, 0, w)
After:
    %0: f32[N, H, T, w] = aten.linear(%q, @folded.c0)

Requires: nothing. Ensures: nothing; graphs with a fixed T are left alone, where slices are cheaper and legal.
Numerics: EXACT for finite activations (each output is one input times 1 plus zeros).
Why: XNNPACK slices only fixed shapes. split-fused-linear moves cuts into weights; what remains, such as the rotated
    part of a head after a norm, is narrow, and the product costs d multiplications an element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.cuts import SPLITS, ColumnCut, cuts_of
from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier, rewrite_matches
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import dtype_of, dynamic_dims, shape_of
from prgec.passes.shared_matrices import SharedMatrices

aten = torch.ops.aten


@dataclass(frozen=True)
class SliceToLinear(Pass):
    """Replace cuts of the last dimension of tensors whose shape depends on T."""

    name: ClassVar[str] = "slice-to-linear"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa", "rotate-half-to-linear", "split-fused-linear"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every cut; equal cuts share their matrix."""
        matrices = SharedMatrices(Rewriter(program, self.name))

        def rewrite(cut: ColumnCut) -> None:
            width = int(shape_of(cut.source)[-1])
            key = (width, cut.begin, cut.end)
            matrices.replace(cut.node, cut.source, key, lambda: torch.eye(width)[cut.begin : cut.end].clone())

        cuts = (cut for node in program.calls(aten.slice.Tensor, *SPLITS) for cut in match(node) or ())
        return rewrite_matches(program, cuts, rewrite)


def match(node: Node) -> list[ColumnCut] | None:
    """Return what a call cuts out of activations; None for any other call."""
    source = node.args[0]
    assert isinstance(source, Node)
    return cuts_of(node) if is_activation(source) else None


def is_activation(source: Node) -> bool:
    """Whether a value is f32, of a shape that depends on T but for its last size, and not a table cut to T."""
    dims = dynamic_dims(source)
    is_wide = bool(dims) and len(shape_of(source)) - 1 not in dims
    return is_wide and dtype_of(source) == torch.float32 and not _is_table(source)


def _is_table(node: Node) -> bool:
    while node.target in (aten.slice.Tensor, aten.expand.default) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node.op == "get_attr"
