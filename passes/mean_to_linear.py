"""Take means over the width as a linear layer with weights 1/D.

Before:
    %0: f32[N, T, 1] = aten.mean.dim(%x, [-1], True)
After:
    %0: f32[N, T, 1] = aten.linear(%x, @folded.c0)

Requires: nothing. Ensures: nothing.
Numerics: ROUNDING (1/D is rounded once; the sum has a GEMM's order).
Why: XNNPACK takes `mean` only over the two spatial dimensions of an image; every RMSNorm and LayerNorm cut the
delegate in two. A linear layer is what delegates do best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import Pass, PassResult, Role, Tier, rewrite_matches, rounding
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import dtype_of, shape_of

aten = torch.ops.aten


@dataclass(frozen=True)
class MeanToLinear(Pass):
    """Replace means over the last dimension."""

    name: ClassVar[str] = "mean-to-linear"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every mean over the width; equal widths share their weights."""
        rewriter = Rewriter(program, self.name)
        weights: dict[int, str] = {}

        def rewrite(node: Node) -> None:
            source = node.args[0]
            assert isinstance(source, Node)
            width = int(shape_of(source)[-1])
            with rewriter.before(node):
                if width in weights:
                    weight = rewriter.read(weights[width])
                else:
                    weight = rewriter.folded(torch.full((1, width), 1.0 / width))
                    weights[width] = str(weight.target)
                mean = rewriter.call(aten.linear.default, source, weight)
            rewriter.replace(node, mean)

        return rewrite_matches(program, map(match, program.calls(aten.mean.dim)), rewrite)


def match(node: Node) -> Node | None:
    """Return an f32 mean over the last dimension, kept as size 1; None for any other mean."""
    source = node.args[0]
    assert isinstance(source, Node)
    rank = len(shape_of(source))
    dims = node.args[1]
    keeps = len(node.args) > 2 and node.args[2] is True
    is_over_width = rank >= 2 and dims in ([-1], [rank - 1]) and isinstance(shape_of(source)[-1], int)
    is_f32 = dtype_of(source) == dtype_of(node) == torch.float32
    return node if keeps and is_over_width and is_f32 else None
