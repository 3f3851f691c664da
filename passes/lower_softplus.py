"""Write softplus with a logarithm that neither overflows nor cancels.

Before:
    %0: f32[N, T, H] = aten.softplus(%x)
After:
    %1: f32[N, T, H] = aten.relu(%x)
    %2: f32[N, T, H] = aten.exp(aten.sub(%x, aten.mul(%1, 2)))
    %0: f32[N, T, H] = aten.add(%1, aten.log(aten.add(%2, 1)))

The exponent is -|x|, so `log(1 + exp(-|x|))` is at most log 2.

Requires: nothing. Ensures: nothing; a softplus with a slope or threshold of its own stays, with a reason.
Numerics: ROUNDING (step sizes below 6e-8 are lost to the 1 beside them).
Why: no delegate takes the op, and these parts have derivatives. Mamba and gated delta layers make step sizes with it.
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

aten = torch.ops.aten


@dataclass(frozen=True)
class LowerSoftplus(Pass):
    """Replace softplus by relu, exp and log."""

    name: ClassVar[str] = "lower-softplus"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"fold-constants"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every softplus."""
        found = map(match, program.calls(aten.softplus.default))
        return rewrite_matches(program, found, partial(_rewrite, Rewriter(program, self.name)))


def match(node: Node) -> Node | Refusal:
    """Return a softplus to replace, or why it stays."""
    beta, threshold = argument(node, 1, "beta", 1), argument(node, 2, "threshold", 20)
    return (
        node if (beta, threshold) == (1, 20) else Refusal(describe(node), f"its slope is {beta}, from {threshold} on")
    )


def _rewrite(rewriter: Rewriter, node: Node) -> None:
    x = node.args[0]
    with rewriter.before(node):
        positive = rewriter.call(aten.relu.default, x)
        exponent = rewriter.call(aten.sub.Tensor, x, rewriter.call(aten.mul.Tensor, positive, 2.0))
        rest = rewriter.call(aten.add.Tensor, rewriter.call(aten.exp.default, exponent), 1.0)
        new = rewriter.call(aten.add.Tensor, positive, rewriter.call(aten.log.default, rest))
    rewriter.replace(node, new)
