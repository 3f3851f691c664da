"""Let all rows meet B in one product of rank 3, the only kind a delegate multiplies two values with.

Before:
    %1: f32[N, T, r] = aten.linear(%x, @site.lora_A)
    %2: f32[N, T, O] = aten.matmul(%1, @site.lora_B)
After:
    %1: f32[N, T, r] = aten.linear(%x, @site.lora_A)
    %2: f32[1, r, O] = aten.view(@site.lora_B, [1, r, O])
    %3: f32[1, N*T, r] = aten.reshape(%1, [1, -1, r])
    %4: f32[1, N*T, O] = aten.bmm(%3, %2)
    %5: f32[N, T, O] = aten.view(%4, [N, -1, O])

Requires: sites from inject-lora-fa. Ensures: no matmul by a site's B is left.
Numerics: ROUNDING (the same products, blocked differently).
Why: where B has one copy, N and T are one dimension; so is the sum over them in the gradient of B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from prgec.passes.dualize import branch_to_bmm
from prgec.passes.infra import Pass, PassResult, Role, Tier, rounding
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.sites import branches


@dataclass(frozen=True)
class BranchToBmm(Pass):
    """Turn each site's matmul into a bmm with one copy of B."""

    name: ClassVar[str] = "branch-to-bmm"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.GRADIENTS
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa"})

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every site."""
        rewriter = Rewriter(program, self.name)
        found = branches(program)
        for branch in found:
            branch_to_bmm(rewriter, branch, copies=1)
        return PassResult(program, bool(found), len(found))

    def ensures(self, program: GraphProgram) -> list[str]:
        """Every branch is a bmm."""
        return [f"%{node.name} is left" for node in branches(program)]
