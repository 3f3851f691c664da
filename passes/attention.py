"""Explicit attention that delegates take: grouped keys, finite shared masks, one dynamic size a view.

Attention reaches a graph as one op or as matmuls; the passes that recognise either form build this one:

    %1: f32[N*KV, T, d] = aten.reshape(aten.mul(%k, s))
    %2: f32[N*KV, G*T, d] = aten.reshape(%q)
    %3: f32[N*KV, G*T, T] = aten.bmm(%2, aten.transpose(%1))
    %4: f32[N*KV, G*T, T] = aten.softmax(aten.add(%3, the mask), -1)
    %5: f32[N, H, T, d] = aten.view(aten.bmm(%4, %v))

N rows, T tokens, H query heads, KV key heads, G = H / KV query heads to a key head, d head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import dtype_of, dynamic_dims, is_same_shape, shape_of
from prgec.passes.tables import SeqTables

aten = torch.ops.aten

MASKED = -1e4


@dataclass(frozen=True)
class Attention:
    """One attention, with k and v before repeat_kv.

    Attributes:
        node: The node that holds the result, f32[N, H, T, d].
        q: f32[N, H, T, d].
        k: f32[N, KV, T, d].
        v: f32[N, KV, T, d].
        mask: Additive mask f32[T, T] for the largest T, or a node f32[N, 1, 1, T] that differs by row; None for full
            attention.
        scale: Factor of the scores.
        between: Element-wise calls between scores and mask, such as a soft cap, in order.
    """

    node: Node
    q: Node
    k: Node
    v: Node
    mask: torch.Tensor | Node | None
    scale: float
    between: tuple[Node, ...] = ()


class AttentionLowering:
    """Builds the explicit form; masks are shared by all layers.

    Args:
        program: Graph to edit.
        rewriter: Rewriter of the pass that found the attention.
    """

    def __init__(self, program: GraphProgram, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._tables = SeqTables(program, rewriter)
        self._masks: list[tuple[torch.Tensor, int, Node]] = []
        self._row_masks: dict[Node, Node] = {}

    def lower(self, found: Attention) -> None:
        """Replace one attention."""
        call = self._rewriter.call
        num_rows, num_heads, _, _ = (int(s) if isinstance(s, int) else -1 for s in shape_of(found.q))
        num_kv, width = int(shape_of(found.k)[1]), int(shape_of(found.q)[-1])
        value_width = int(shape_of(found.v)[-1])
        group = num_heads // num_kv
        if isinstance(found.mask, Node):
            mask: Node | None = self._row_mask(found.mask, num_kv)
        else:
            mask = None if found.mask is None else self._mask(found.mask, group)
        with self._rewriter.before(found.node):
            k = call(aten.reshape.default, call(aten.mul.Tensor, found.k, found.scale), [num_rows * num_kv, -1, width])
            v = call(aten.reshape.default, found.v, [num_rows * num_kv, -1, value_width])
            q = call(aten.reshape.default, found.q, [num_rows * num_kv, -1, width])
            scores = call(aten.bmm.default, q, call(aten.transpose.int, k, 1, 2))
            for node in found.between:
                scores = call(node.target, scores, *node.args[1:], **node.kwargs)  # type: ignore[arg-type]
            if mask is not None:
                scores = call(aten.add.Tensor, scores, mask)
            mixed = call(aten.bmm.default, call(aten.softmax.int, scores, -1), v)
            if dynamic_dims(found.q) and group > 1:
                # One view from [.., G*T, d] to [N, H, T, d] makes the tracer guard on T; two do not.
                mixed = call(aten.view.default, mixed, [num_rows * num_kv, group, -1, value_width])
            out = call(aten.view.default, mixed, [num_rows, num_heads, -1, value_width])
        self._rewriter.replace(found.node, out)

    def _row_mask(self, mask: Node, num_heads: int) -> Node:
        """Return f32[N*H, 1, T] of f32[N, 1, 1, T], right after the mask itself: every layer reads it."""
        if mask not in self._row_masks:
            call, num_rows = self._rewriter.call, int(shape_of(mask)[0])
            with self._rewriter.before(mask.next):
                repeated = call(aten.expand.default, mask, [-1, num_heads, -1, -1])
                self._row_masks[mask] = call(aten.reshape.default, repeated, [num_rows * num_heads, 1, -1])
        return self._row_masks[mask]

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


def shared_heads(k: Node, v: Node) -> tuple[Node, Node]:
    """Return k and v before repeat_kv, or as they are unless both were repeated alike."""
    shared_k, shared_v = before_repeat_kv(k), before_repeat_kv(v)
    return (shared_k, shared_v) if shape_of(shared_k)[1] == shape_of(shared_v)[1] else (k, v)


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


def causal_mask(length: int) -> torch.Tensor:
    """Additive mask f32[length, length] that hides what comes later."""
    return torch.full((length, length), MASKED).triu(1)


def constant_mask(program: GraphProgram, mask: object) -> torch.Tensor | None:
    """Additive f32[T, T] for the largest T, from a mask that is a cut of a constant; None for any other."""
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


def row_mask(mask: object) -> Node | None:
    """Return a mask that is one f32[N, 1, 1, T] for each row, added to the scores; None for any other."""
    if not isinstance(mask, Node) or dtype_of(mask) != torch.float32 or len(shape_of(mask)) != 4:
        return None
    return mask if list(shape_of(mask)[1:3]) == [1, 1] else None


def _takes_first(cut: Node) -> bool:
    """Whether a slice keeps elements 0, 1, 2, ... of its dimension."""
    return cut.args[2] in (0, None) and cut.args[4:] in ((), (1,))
