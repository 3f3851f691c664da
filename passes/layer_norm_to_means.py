"""Spell LayerNorm out as two means and element-wise ops.

Before:
    %0: f32[N, T, D] = aten.layer_norm(%x, [D], @norm.weight, @norm.bias, 1e-05)
After:
    %0: f32[N, T, 1] = aten.mean(%x, [-1], True)
    %1: f32[N, T, D] = aten.sub(%x, %0)
    %2: f32[N, T, D] = aten.mul(%1, %1)
    %3: f32[N, T, 1] = aten.mean(%2, [-1], True)
    %4: f32[N, T, 1] = aten.rsqrt(aten.add(%3, 1e-05))
    %5: f32[N, T, D] = aten.mul(%1, %4)
    %6: f32[N, T, D] = aten.add(aten.mul(%5, @norm.weight), @norm.bias)

Requires: nothing. Ensures: nothing (norms over several dimensions stay, with a reason).
Numerics: ROUNDING (two passes over the row, as the op's own definition; the kernel may use one).
Why: XNNPACK has no LayerNorm, so each would cut the delegate in two. mean-to-linear takes the means from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import Pass, PassResult, Role, Tier, describe, rewrite_matches, rounding
from prgec.passes.program import GraphProgram, argument
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import dtype_of

aten = torch.ops.aten


@dataclass(frozen=True)
class LayerNormToMeans(Pass):
    """Replace LayerNorm over the last dimension."""

    name: ClassVar[str] = "layer-norm-to-means"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every LayerNorm."""
        rewriter = Rewriter(program, self.name)
        found = map(match, program.calls(aten.layer_norm.default))
        return rewrite_matches(program, found, partial(_rewrite, rewriter))


def match(node: Node) -> Node | Refusal:
    """Return a LayerNorm to rewrite, or why it stays."""
    sizes = node.args[1]
    assert isinstance(sizes, list | tuple)
    if len(sizes) != 1:
        return Refusal(describe(node), f"it normalises over {len(sizes)} dimensions")
    if dtype_of(node) != torch.float32:
        return Refusal(describe(node), f"it computes in {dtype_of(node)}; expected f32")
    return node


def _rewrite(rewriter: Rewriter, node: Node) -> None:
    call, source = rewriter.call, node.args[0]
    weight, bias, eps = (argument(node, i, name) for i, name in ((2, "weight"), (3, "bias"), (4, "eps")))
    with rewriter.before(node):
        centred = call(aten.sub.Tensor, source, call(aten.mean.dim, source, [-1], True))
        variance = call(aten.mean.dim, call(aten.mul.Tensor, centred, centred), [-1], True)
        new = call(
            aten.mul.Tensor,
            centred,
            call(aten.rsqrt.default, call(aten.add.Tensor, variance, 1e-5 if eps is None else eps)),
        )
        if weight is not None:
            new = call(aten.mul.Tensor, new, weight)
        if bias is not None:
            new = call(aten.add.Tensor, new, bias)
    rewriter.replace(node, new)
