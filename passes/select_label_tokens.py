"""Gather the K label positions before the LM head, so that N*K rows meet V and not N*T.

Before:
    %0: f32[N, T, V] = aten.linear(%h, @lm_head.weight)
    %1: f32[N, K, V] = aten.gather(%0, 1, %index)
After:
    %0: f32[N, K, D] = aten.gather(%h, 1, %narrow_index)
    %1: f32[N, K, V] = aten.linear(%0, @lm_head.weight)

Ops that treat every position alike between the LM head and the gather (casts, soft-capping) move along.

Requires: nothing. Ensures: nothing (a graph without the pattern is left alone, with a reason).
Numerics: ROUNDING (a GEMM of another height may sum in another order).
Why: for V = 32,000 the head is the largest product of a small model, and T - K of its T rows are thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import Pass, PassResult, Role, Tier, describe, rewrite_matches, rounding
from prgec.passes.program import GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import is_same_shape, is_same_size, shape_of

aten = torch.ops.aten

_POSITIONWISE = frozenset(
    {
        aten.to.dtype,
        aten.tanh.default,
        aten.mul.Tensor,
        aten.div.Tensor,
        aten.mul.Scalar,
        aten.div.Scalar,
        aten.alias.default,
        aten.contiguous.default,
    }
)


@dataclass(frozen=True)
class GatherMatch:
    """A gather over positions with what leads to it.

    Attributes:
        gather: The gather.
        between: Position-wise ops between head and gather, head first.
        head: The LM head's linear.
        label_pos: i64[N, K], the positions gathered.
    """

    gather: Node
    between: tuple[Node, ...]
    head: Node
    label_pos: Node


@dataclass(frozen=True)
class SelectLabelTokens(Pass):
    """Move the label gather before the LM head."""

    name: ClassVar[str] = "select-label-tokens"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"canonicalize"})

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite each gather over positions of an LM head."""
        found = map(match, program.calls(aten.gather.default))
        return rewrite_matches(program, found, partial(_rewrite, Rewriter(program, self.name)))


def gathers_positions(node: Node) -> bool:
    """Whether a gather picks positions of something shaped [N, T, V]."""
    return bool(node.args[1] == 1) and len(shape_of(node)) == 3


def match(gather: Node) -> GatherMatch | Refusal | None:
    """Return the match that ends in `gather`, or why there is none; None for gathers of anything but positions."""
    if not gathers_positions(gather):
        return None
    where = describe(gather)
    between: list[Node] = []
    node = gather.args[0]
    while isinstance(node, Node) and node.target in _POSITIONWISE:
        if len(node.users) != 1:
            return Refusal(where, f"{describe(node)} has other readers")
        if any(isinstance(other, Node) and len(shape_of(other)) > 1 for other in node.args[1:]):
            return Refusal(where, f"{describe(node)} may treat positions differently")
        between.insert(0, node)
        node = node.args[0]
    if not isinstance(node, Node) or node.target is not aten.linear.default:
        return Refusal(where, f"is fed by {describe(node) if isinstance(node, Node) else node}, not by a linear")
    if len(node.users) != 1:
        return Refusal(where, "the logits have other readers")
    label_pos = label_positions(gather.args[2])
    if label_pos is None or not is_same_size(shape_of(gather)[2], shape_of(node)[2]):
        return Refusal(where, "its index is not one position a label, expanded over V")
    return GatherMatch(gather, tuple(between), node, label_pos)


def _rewrite(rewriter: Rewriter, found: GatherMatch) -> None:
    hidden, *weights = found.head.args
    assert isinstance(hidden, Node)
    width = shape_of(hidden)[-1]
    with rewriter.before(found.gather):
        index = rewriter.call(
            aten.expand.default, rewriter.call(aten.unsqueeze.default, found.label_pos, -1), [-1, -1, width]
        )
        new = rewriter.call(aten.gather.default, hidden, 1, index)
        new = rewriter.call(aten.linear.default, new, *weights)
        for node in found.between:
            new = rewriter.call(node.target, new, *node.args[1:], **node.kwargs)  # type: ignore[arg-type]
    assert is_same_shape(shape_of(new), shape_of(found.gather))
    rewriter.replace(found.gather, new)


def label_positions(index: object) -> Node | None:
    """The [N, K] positions in an index of the form `expand(unsqueeze(label_pos, -1))`."""
    node = index
    for op in (aten.expand.default, aten.unsqueeze.default):
        if not isinstance(node, Node) or node.target is not op:
            return None
        if op is aten.unsqueeze.default and node.args[1] not in (-1, 2):
            return None
        node = node.args[0]
    return node if isinstance(node, Node) and len(shape_of(node)) == 2 else None
