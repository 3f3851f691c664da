"""Let every query and sign have its own B: the branch becomes one bmm over 2q copies.

Before:
    %1: f32[N, T, r] = aten.linear(%x, @site.lora_A)
    %2: f32[N, T, O] = aten.matmul(%1, @site.lora_B)
After:
    %1: f32[N, T, r] = aten.linear(%x, @site.lora_A)
    %2: f32[1, r, O] = aten.unsqueeze(@site.lora_B, 0)
    %3: f32[2q, r, O] = aten.expand(%2, [2q, -1, -1])
    %4: f32[2q, B*T, r] = aten.reshape(%1, [2q, -1, r])
    %5: f32[2q, B*T, O] = aten.bmm(%4, %3)
    %6: f32[N, T, O] = aten.view(%5, [N, -1, O])

Rows come as ((i*2 + s)*B + b), so the B rows of one copy are neighbours and the reshape moves nothing.

Requires: sites from inject-lora-fa, N a multiple of 2q. Ensures: one bmm a site.
Numerics: ROUNDING (the same products, blocked differently).
Why: outer- and inner-loop parallelisation read W and A once for all 2q replicas (Gao et al., "Enabling Efficient
On-Device Fine-Tuning of LLMs Using Only Inference Engines", sections 3.1 and 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import Pass, PassResult, Role, Tier, rounding
from prgec.passes.program import TOKENS, GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import dynamic_dims, shape_of, view_sizes
from prgec.passes.sites import branches

aten = torch.ops.aten


@dataclass(frozen=True)
class Dualize(Pass):
    """Turn each site's matmul into a bmm over 2q copies of B.

    Attributes:
        q: Queries a step.
    """

    name: ClassVar[str] = "dualize"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.MEASURED_LOSSES
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa"})

    q: int = 1

    def requires(self, program: GraphProgram) -> list[str]:
        """N rows must be 2q groups of B."""
        tokens = program.placeholder(TOKENS)
        num_rows = int(tokens.meta["val"].shape[0]) if tokens is not None else 0
        if self.q < 1 or num_rows % (2 * self.q):
            return [f"{num_rows} rows are not a multiple of 2q = {2 * self.q}"]
        return []

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every site."""
        rewriter = Rewriter(program, self.name)
        found = branches(program)
        for branch in found:
            branch_to_bmm(rewriter, branch, copies=2 * self.q)
        return PassResult(program, bool(found), len(found))


def branch_to_bmm(rewriter: Rewriter, branch: Node, copies: int) -> None:
    """Replace a site's matmul by a bmm with copies of B, each for as many rows that follow one another.

    Args:
        rewriter: Adds the nodes.
        branch: Matmul of f32[N, T, r] by a site's B f32[r, O].
        copies: How many copies of B there are; N is a multiple of it.
    """
    low_rank, b_RO = branch.args
    assert isinstance(low_rank, Node) and isinstance(b_RO, Node)
    rank = shape_of(b_RO)[0]
    with rewriter.before(branch):
        if copies > 1:
            copied = rewriter.call(
                aten.expand.default, rewriter.call(aten.unsqueeze.default, b_RO, 0), [copies, -1, -1]
            )
        else:
            copied = rewriter.call(aten.view.default, b_RO, [1, *shape_of(b_RO)])
        grouped = rewriter.call(aten.reshape.default, low_rank, [copies, -1, rank])
        product = rewriter.call(aten.bmm.default, grouped, copied)
        ungrouped = _ungrouped(rewriter, product, branch, copies)
        rows = rewriter.call(aten.view.default, ungrouped, view_sizes(shape_of(branch)))
    rewriter.replace(branch, rows)


def _ungrouped(rewriter: Rewriter, product: Node, branch: Node, copies: int) -> Node:
    """Split B*T first where T is symbolic: one view from [2q, B*T] to [N, T] makes the tracer guard on T."""
    if not dynamic_dims(branch) or len(shape_of(branch)) != 3:
        return product
    num_rows, _, out = shape_of(branch)
    return rewriter.call(aten.view.default, product, [copies, int(num_rows) // copies, -1, out])
