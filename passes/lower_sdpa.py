"""Spell attention out as two bmm and a softmax, with grouped queries sharing their keys.

Before (H query heads, G = H / KV of them to a key head; repeat_kv made H copies of k and v):
    %1: f32[N, H, T, d] = aten.reshape(aten.expand(aten.unsqueeze(%k, 2)))
    %2: f32[N, H, T, d] = aten.scaled_dot_product_attention(%q, %1, %v1, %mask, scale=s)
After:
    %0: f32[1, G*T, T] = the causal mask, 0 or -1e4, one copy for each of the G heads
    %1: f32[N, KV, T, d] = aten.mul(%k, s)
    %2: f32[N*KV, T, d] = aten.reshape(%1)
    %3: f32[N*KV, G*T, d] = aten.reshape(%q)
    %4: f32[N*KV, G*T, T] = aten.bmm(%3, aten.transpose(%2))
    %5: f32[N*KV, G*T, T] = aten.softmax(aten.add(%4, %0), -1)
    %6: f32[N*KV, G*T, d] = aten.bmm(%5, %v)
    %7: f32[N, H, T, d] = aten.view(%6)

A mask of rows, f32[N, 1, 1, T], is added as it is, repeated for the heads.

Requires: constant masks (fold-constants), or masks of rows. Ensures: nothing; attention it refuses keeps its op, with a
reason.
Numerics: ROUNDING. -1e4 and not -inf: it is exact zero after the softmax all the same, fits f16, and no row is
ever masked whole, so ExecuTorch's safe-softmax chain (eq, all, where) has nothing to protect.
Why: no delegate takes the op itself, its decomposition repeats k and v for every query head, and the safe-softmax
chain cuts the graph at every layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.attention import Attention, AttentionLowering, causal_mask, constant_mask, row_mask, shared_heads
from prgec.passes.infra import Pass, PassResult, Role, Tier, describe, rewrite_matches, rounding
from prgec.passes.program import GraphProgram, argument
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import shape_of

aten = torch.ops.aten


@dataclass(frozen=True)
class LowerSdpa(Pass):
    """Replace scaled_dot_product_attention by explicit bmm and softmax."""

    name: ClassVar[str] = "lower-sdpa"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"fold-constants"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every attention whose mask is known."""
        lowering = AttentionLowering(program, Rewriter(program, self.name))
        found = (match(program, node) for node in program.calls(aten.scaled_dot_product_attention.default))
        return rewrite_matches(program, found, lowering.lower)


def match(program: GraphProgram, node: Node) -> Attention | Refusal:
    """Return the parts of one attention, or why it is left alone."""
    where = describe(node)
    q, k, v = (node.args[i] for i in range(3))
    assert isinstance(q, Node) and isinstance(k, Node) and isinstance(v, Node)
    if argument(node, 4, "dropout_p", 0.0) != 0.0:
        return Refusal(where, "it drops out")
    if len(shape_of(q)) != 4:
        return Refusal(where, f"its query has rank {len(shape_of(q))}; expected [N, H, T, d]")
    mask = argument(node, 3, "attn_mask", None)
    table: torch.Tensor | Node | None
    if mask is None:
        table = causal_mask(program.max_seq_len()) if argument(node, 5, "is_causal", False) else None
    else:
        table = constant_mask(program, mask)
        if table is None and int(shape_of(q)[1]) == int(shape_of(shared_heads(k, v)[0])[1]):
            table = row_mask(mask)
        if table is None:
            return Refusal(where, "its mask is neither a constant [T, T] nor one [N, 1, 1, T] of rows")
    scale = argument(node, 6, "scale", None)
    default_scale = 1.0 / math.sqrt(int(shape_of(q)[-1]))
    k, v = shared_heads(k, v)
    return Attention(node, q, k, v, table, scale if isinstance(scale, float) else default_scale)
