"""Make every transposition of activations a copy in its new order.

Before:
    %0: f32[N, H, T, d] = aten.transpose.int(%x, 1, 2)
After:
    %0: f32[N, H, T, d] = aten.transpose.int(%x, 1, 2)
    %1: f32[N, H, T, d] = aten.clone(%0, memory_format=torch.contiguous_format)

Requires: nothing. Ensures: no transposition of a symbolic T is a view.
Numerics: EXACT.
Why: ExecuTorch has no strided tensors, so each transposition copies anyway, but the tracer believes in strides and puts
more copies before later views. With the copy right here, everything after it is contiguous, and a backend whose
transpositions copy reduces the pair to one op (`backends/edge_clones.py`). `permute_copy` itself would say it in one
op, but tracing it fixes T to the traced length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier, rewrite_matches
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import dynamic_dims

aten = torch.ops.aten


@dataclass(frozen=True)
class TransposeToCopy(Pass):
    """Replace views that reorder dimensions by copies."""

    name: ClassVar[str] = "transpose-to-copy"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"lower-sdpa"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every transposition of a dynamic shape."""
        rewriter = Rewriter(program, self.name)

        def rewrite(node: Node) -> None:
            with rewriter.before(node.next):
                copy = rewriter.call(aten.clone.default, node, memory_format=torch.contiguous_format)
            rewriter.redirect(node, copy)

        found = map(match, program.calls(aten.transpose.int, aten.permute.default))
        return rewrite_matches(program, found, rewrite)

    def ensures(self, program: GraphProgram) -> list[str]:
        """Only fixed shapes are still transposed as views."""
        left = program.calls(aten.transpose.int, aten.permute.default)
        return [f"%{node.name} is left" for node in filter(match, left)]


def match(node: Node) -> Node | None:
    """Return a transposition that depends on T and that something other than its copy reads; None for any other."""
    is_read_as_view = any(user.target is not aten.clone.default for user in node.users)
    return node if dynamic_dims(node) and is_read_as_view else None
