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

Requires: constant masks (fold-constants). Ensures: nothing; attention it refuses keeps its op, with a reason.
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

from prgec.passes.infra import Pass, PassResult, Refusal, Tier, describe, rounding
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter, erase_dead
from prgec.passes.shapes import dynamic_dims, is_same_shape, shape_of
from prgec.passes.tables import SeqTables

aten = torch.ops.aten

MASKED = -1e4


@dataclass(frozen=True)
class Match:
    """One attention, with k and v before repeat_kv.

    Attributes:
        node: The attention op.
        q: f32[N, H, T, d].
        k: f32[N, KV, T, d].
        v: f32[N, KV, T, d].
        mask: Additive mask f32[T, T] for the largest T; None for full attention.
        scale: Factor of the scores.
    """

    node: Node
    q: Node
    k: Node
    v: Node
    mask: torch.Tensor | None
    scale: float


@dataclass(frozen=True)
class LowerSdpa(Pass):
    """Replace scaled_dot_product_attention by explicit bmm and softmax."""

    name: ClassVar[str] = "lower-sdpa"
    tier: ClassVar[Tier] = rounding(1e-5)
    after: ClassVar[frozenset[str]] = frozenset({"fold-constants"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every attention whose mask is known."""
        lowering = _Lowering(program, Rewriter(program, self.name))
        hits, refusals = 0, []
        for node in program.calls(aten.scaled_dot_product_attention.default):
            found = match(program, node)
            if isinstance(found, Refusal):
                refusals.append(found)
                continue
            lowering.lower(found)
            hits += 1
        if hits:
            erase_dead(program)
        return PassResult(program, hits > 0, hits, tuple(refusals))


def match(program: GraphProgram, node: Node) -> Match | Refusal:
    """Return the parts of one attention, or why it is left alone."""
    where = describe(node)
    q, k, v = (node.args[i] for i in range(3))
    assert isinstance(q, Node) and isinstance(k, Node) and isinstance(v, Node)
    if _argument(node, 4, "dropout_p", 0.0) != 0.0:
        return Refusal(where, "it drops out")
    if len(shape_of(q)) != 4:
        return Refusal(where, f"its query has rank {len(shape_of(q))}; expected [N, H, T, d]")
    mask = _argument(node, 3, "attn_mask", None)
    if mask is None:
        table = _causal(program.max_seq_len()) if _argument(node, 5, "is_causal", False) else None
    else:
        table = _constant_mask(program, mask)
        if table is None:
            return Refusal(where, "its mask is not a constant [T, T]")
    scale = _argument(node, 6, "scale", None)
    default_scale = 1.0 / math.sqrt(int(shape_of(q)[-1]))
    shared_k, shared_v = before_repeat_kv(k), before_repeat_kv(v)
    if shape_of(shared_k)[1] != shape_of(shared_v)[1]:
        shared_k, shared_v = k, v
    return Match(node, q, shared_k, shared_v, table, scale if isinstance(scale, float) else default_scale)


def before_repeat_kv(node: Node) -> Node:
    """Return what `reshape(expand(unsqueeze(x, 2)))` repeats for every query head, or the node itself."""
    chain = node
    for op in (aten.reshape.default, aten.expand.default, aten.unsqueeze.default):
        if chain.target is not op or not isinstance(chain.args[0], Node):
            return node
        if op is aten.unsqueeze.default and chain.args[1] != 2:
            return node
        chain = chain.args[0]
    batch, _, *rest = shape_of(node)
    return chain if is_same_shape([batch, *rest], [shape_of(chain)[0], *shape_of(chain)[2:]]) else node


class _Lowering:
    """Builds the explicit form; masks are shared by all layers."""

    def __init__(self, program: GraphProgram, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._tables = SeqTables(program, rewriter)
        self._masks: list[tuple[torch.Tensor, int, Node]] = []

    def lower(self, found: Match) -> None:
        """Replace one attention."""
        call = self._rewriter.call
        num_rows, num_heads, _, _ = (int(s) if isinstance(s, int) else -1 for s in shape_of(found.q))
        num_kv, width = int(shape_of(found.k)[1]), int(shape_of(found.q)[-1])
        value_width = int(shape_of(found.v)[-1])
        group = num_heads // num_kv
        mask = None if found.mask is None else self._mask(found.mask, group)
        with self._rewriter.before(found.node):
            k = call(aten.reshape.default, call(aten.mul.Tensor, found.k, found.scale), [num_rows * num_kv, -1, width])
            v = call(aten.reshape.default, found.v, [num_rows * num_kv, -1, value_width])
            q = call(aten.reshape.default, found.q, [num_rows * num_kv, -1, width])
            scores = call(aten.bmm.default, q, call(aten.transpose.int, k, 1, 2))
            if mask is not None:
                scores = call(aten.add.Tensor, scores, mask)
            mixed = call(aten.bmm.default, call(aten.softmax.int, scores, -1), v)
            if dynamic_dims(found.q) and group > 1:
                # One view from [.., G*T, d] to [N, H, T, d] makes the tracer guard on T; two do not.
                mixed = call(aten.view.default, mixed, [num_rows * num_kv, group, -1, value_width])
            out = call(aten.view.default, mixed, [num_rows, num_heads, -1, value_width])
        self._rewriter.replace(found.node, out)

    def _mask(self, table: torch.Tensor, group: int) -> Node:
        for known, known_group, node in self._masks:
            if known_group == group and torch.equal(known, table):
                return node
        cut = self._tables.cut(table.unsqueeze(0), [1, 2])
        if dynamic_dims(cut) and group > 1:
            # cat and not expand + reshape: merging [G, T] makes the tracer guard on T.
            with self._rewriter.before(cut.next):
                cut = self._rewriter.call(aten.cat.default, [cut] * group, 1)
        elif group > 1:
            cut = self._tables.cut(table.repeat(group, 1).unsqueeze(0), [])
        self._masks.append((table, group, cut))
        return cut


def _argument(node: Node, index: int, name: str, default: object) -> object:
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def _causal(length: int) -> torch.Tensor:
    return torch.full((length, length), MASKED).triu(1)


def _takes_first(cut: Node) -> bool:
    """Whether a slice keeps elements 0, 1, 2, ... of its dimension."""
    return cut.args[2] in (0, None) and cut.args[4:] in ((), (1,))


def _constant_mask(program: GraphProgram, mask: object) -> torch.Tensor | None:
    """Additive f32[T, T] for the largest T behind a mask that is a cut of a constant; None for any other."""
    node = mask
    while isinstance(node, Node) and node.target in (aten.expand.default, aten.slice.Tensor):
        if node.target is aten.slice.Tensor and not _takes_first(node):
            return None
        node = node.args[0]
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    table = program.attribute(node)
    longest = program.max_seq_len()
    if any(size != 1 for size in table.shape[:-2]) or min(table.shape[-2:]) < longest:
        return None
    table = table.reshape(table.shape[-2:])[:longest, :longest]
    if table.dtype == torch.bool:
        return torch.zeros(table.shape).masked_fill(~table, MASKED)
    return table.to(torch.float32).clamp(min=MASKED)
