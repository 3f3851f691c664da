"""Make the copies of B inputs: what a driver does on a runtime that cannot change a program's weights.

Before (every site):
    %1: f32[N, T, r] = aten.linear(%x, @site.lora_A)
    %2: f32[N, T, O] = aten.matmul(%1, @site.lora_B)
After:
    %1: f32[N, T, r] = aten.linear(%x, @site.lora_A)
    %2: f32[c, N/c*T, r] = aten.reshape(%1, [c, -1, r])
    %3: f32[c, N/c*T, O] = aten.bmm(%2, copies_0)
    %4: f32[N, T, O] = aten.view(%3, [N, -1, O])

Requires: sites from inject-lora-fa, N a multiple of c. Ensures: nothing.
Numerics: CHANGES (B comes from outside).
Why: baselines of a benchmark see exactly the branch a training program has, for any number of copies, without its
update; a B that is a constant would become a weight the delegate packs, which no training could change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import CHANGES, Pass, PassResult, Role, Tier
from prgec.passes.program import TOKENS, GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import dynamic_dims, shape_of, view_sizes
from prgec.passes.sites import branches

aten = torch.ops.aten


@dataclass(frozen=True)
class FeedCopies(Pass):
    """Turn each site's matmul into a bmm over copies of B that are inputs.

    Attributes:
        copies: c, copies of B a call takes.
    """

    name: ClassVar[str] = "feed-copies"
    tier: ClassVar[Tier] = CHANGES
    role: ClassVar[Role] = Role.TRAINING
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa"})

    copies: int = 1

    def requires(self, program: GraphProgram) -> list[str]:
        """N rows must be c groups."""
        tokens = program.placeholder(TOKENS)
        num_rows = int(tokens.meta["val"].shape[0]) if tokens is not None else 0
        if self.copies < 1 or num_rows % self.copies:
            return [f"{num_rows} rows are not a multiple of {self.copies} copies"]
        return []

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every site."""
        rewriter = Rewriter(program, self.name)
        sites = branches(program)
        for index, branch in enumerate(sites):
            self._feed(rewriter, branch, f"copies_{index}")
        return PassResult(program, bool(sites), len(sites))

    def _feed(self, rewriter: Rewriter, branch: Node, name: str) -> None:
        low_rank, b_RO = branch.args
        assert isinstance(low_rank, Node) and isinstance(b_RO, Node)
        rank, out = (int(size) for size in shape_of(b_RO))
        copies = rewriter.input(name, torch.zeros(self.copies, rank, out))
        with rewriter.before(branch):
            grouped = rewriter.call(aten.reshape.default, low_rank, [self.copies, -1, rank])
            product = rewriter.call(aten.bmm.default, grouped, copies)
            if dynamic_dims(branch) and len(shape_of(branch)) == 3:
                # One view from [c, N/c*T] to [N, T] makes the tracer guard on T.
                per_copy = int(shape_of(branch)[0]) // self.copies
                product = rewriter.call(aten.view.default, product, [self.copies, per_copy, -1, out])
            rows = rewriter.call(aten.view.default, product, view_sizes(shape_of(branch)))
        rewriter.replace(branch, rows)
