"""Split a fused layer (qkv, gate and up) into the layers its readers cut it into.

Before:
    %0: f32[N, T, 2*F] = aten.linear(%x, @gate_up.weight)
    %1: f32[2q, B*T, 2*F] = aten.bmm(%h, %copies)
    %2: f32[N, T, 2*F] = aten.add(%0, aten.view(%1))
    %3, %4 = aten.chunk(%2, 2, -1)
After (and the same for %4):
    %0: f32[N, T, F] = aten.linear(%x, @gate_up.part0.weight)
    %1: f32[2q, r, F] = aten.slice(%copies, 2, 0, F)
    %2: f32[2q, B*T, F] = aten.bmm(%h, %1)
    %3: f32[N, T, F] = aten.add(%0, aten.view(%2))

Cuts after the split into heads, as GPT-NeoX makes them, move too; the layer's site, its A and its state stay one.

Requires: nothing. Ensures: nothing (a layer that is also read whole stays).
Numerics: ROUNDING (a GEMM of another width may sum in another order).
Why: XNNPACK slices only fixed shapes, so under a symbolic T each cut of activations would leave the delegate. Weights
have fixed shapes, and cutting them once saves a copy of the activations at every step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.columns import Columns, whole
from prgec.passes.cuts import ColumnCut, cuts_of
from prgec.passes.infra import Pass, PassResult, Role, Tier, describe, rewrite_matches, rounding
from prgec.passes.program import GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter, erase_dead
from prgec.passes.shapes import dynamic_dims, is_same_size, shape_of
from prgec.passes.weights import layer_name

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten.reshape.default)


@dataclass(frozen=True, kw_only=True)
class Fused:
    """A fused layer.

    Attributes:
        linear: The frozen layer.
        top: Node that the readers cut: the linear itself, or its sum with the LoRA branch.
        product: The branch's bmm with the 2q copies; None without a branch.
        views: Views between the product and the sum.
        pieces: Columns that are read, in graph order.
    """

    linear: Node
    top: Node
    product: Node | None
    views: tuple[Node, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Piece:
    """One value cut out of a fused layer.

    Attributes:
        node: The cut.
        columns: Outputs of the layer it holds.
        between: Views and transpositions between the layer and the cut, in order.
    """

    node: Node
    columns: Columns
    between: tuple[Node, ...]


@dataclass(frozen=True)
class SplitFusedLinear(Pass):
    """Cut weights and B instead of activations."""

    name: ClassVar[str] = "split-fused-linear"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    # rotate-half-to-linear first: what is left of RoPE would look like readers that cut.
    after: ClassVar[frozenset[str]] = frozenset({"dualize", "fuse-update", "rotate-half-to-linear"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Split every layer whose readers all cut it."""
        rewriter = Rewriter(program, self.name)
        parts: Counter[str] = Counter()

        def rewrite(found: Fused) -> None:
            site, linear = layer_name(found.linear), found.linear
            tensors = [str(node.target) for node in linear.args[1:] if isinstance(node, Node)]
            _split(rewriter, program, found, parts[site])
            parts[site] += len(found.pieces)
            erase_dead(program)
            for name in tensors:
                rewriter.release(name)

        return rewrite_matches(program, map(match, program.calls(aten.linear.default)), rewrite)


def match(linear: Node) -> Fused | Refusal | None:
    """Return the fused layer that `linear` computes, or why it stays; None if nobody cuts it."""
    name, size = layer_name(linear), int(shape_of(linear)[-1])
    if not name:
        return None
    readers = list(linear.users)
    is_summed = len(readers) == 1 and readers[0].target is aten.add.Tensor and readers[0].args[0] is linear
    top = readers[0] if is_summed else linear
    pieces, others = readers_of(top, whole(size), ())
    if not pieces:
        return None
    branch = _branch(top.args[1], size) if is_summed else None
    if is_summed and branch is None:
        return Refusal(name, "the value added to it is not a LoRA branch of its own")
    if others:
        # Where T is fixed the cuts are legal, and nothing is lost.
        return Refusal(name, f"{describe(others[0])} reads it uncut") if dynamic_dims(linear) else None
    if sum(piece.columns.count for piece in pieces) > size:
        return Refusal(name, "its cuts overlap; splitting it would compute the overlap twice")
    product, views = branch or (None, ())
    return Fused(linear=linear, top=top, product=product, views=views, pieces=tuple(pieces))


def readers_of(node: Node, columns: Columns, between: tuple[Node, ...]) -> tuple[list[Piece], list[Node]]:
    """The cuts of `node`, and the nodes that read it uncut."""
    pieces: list[Piece] = []
    others: list[Node] = []
    for user in node.users:
        cuts = cuts_of(user) if user.args[0] is node else None
        if cuts is not None:
            pieces += [piece for cut in cuts for piece in _cut_pieces(cut, columns, between)]
            # Cuts of which nobody reads anything are as good as none.
            others += [] if cuts else [user]
            continue
        split = _rearranged(user, node, columns)
        below = readers_of(user, split, (*between, user)) if split is not None else ([], [])
        pieces += below[0]
        others += below[1] if below[0] else [user]
    return pieces, others


def _rearranged(user: Node, source: Node, columns: Columns) -> Columns | None:
    """The columns after a transposition of other dimensions or a split into heads; None after any other call."""
    if user.args[0] is not source:
        return None
    rank = len(shape_of(source))
    if user.target is aten.transpose.int and rank - 1 not in (int(d) % rank for d in user.args[1:]):  # type: ignore[arg-type]
        return columns
    heads = _heads(user, source)
    return columns.split(heads) if heads else None


def _cut_pieces(cut: ColumnCut, columns: Columns, between: tuple[Node, ...]) -> list[Piece]:
    """A cut, or what all of its readers cut out of it in turn."""
    taken = columns.cut(cut.begin, cut.end)
    pieces, others = readers_of(cut.node, taken, between)
    return pieces if pieces and not others else [Piece(cut.node, taken, between)]


def _heads(user: Node, source: Node) -> int:
    """Number of heads a view splits the last dimension into; 0 if it does something else."""
    if user.target not in _VIEWS:
        return 0
    before, after = shape_of(source), shape_of(user)
    if len(after) != len(before) + 1 or not isinstance(after[-2], int):
        return 0
    return after[-2] if all(is_same_size(a, b) for a, b in zip(before[:-1], after[:-2], strict=True)) else 0


def _branch(node: object, size: int) -> tuple[Node, tuple[Node, ...]] | None:
    """The bmm that ends a LoRA branch, and the views after it; None for any other value."""
    views: list[Node] = []
    while isinstance(node, Node) and node.target in _VIEWS and shape_of(node)[-1] == size and len(node.users) == 1:
        views.insert(0, node)
        node = node.args[0]
    if not isinstance(node, Node) or node.target is not aten.bmm.default or len(node.users) != 1:
        return None
    copies = node.args[1]
    is_fixed = isinstance(copies, Node) and all(isinstance(each, int) for each in shape_of(copies))
    return (node, tuple(views)) if is_fixed and shape_of(node)[-1] == size else None


def _split(rewriter: Rewriter, program: GraphProgram, found: Fused, first_number: int) -> None:
    blocks: dict[tuple[int, int, int], Node] = {}
    for number, piece in enumerate(found.pieces, first_number):
        with rewriter.before(found.top):
            new = _narrow_linear(rewriter, program, found.linear, piece.columns, number)
            if found.product is not None:
                new = rewriter.call(aten.add.Tensor, new, _narrow_branch(rewriter, found, piece.columns, blocks))
            for node in piece.between:
                args = node.args[1:]
                if node.target in _VIEWS:
                    args = ([*_sizes(node)[:-2], piece.columns.heads, piece.columns.width],)
                new = rewriter.call(node.target, new, *args)  # type: ignore[arg-type]
        rewriter.replace(piece.node, new)


def _narrow_linear(rewriter: Rewriter, program: GraphProgram, linear: Node, columns: Columns, number: int) -> Node:
    """Rows of the weight and the bias, as a layer of its own."""
    source, *tensors = linear.args
    rows = columns.indices()
    read = [
        rewriter.constant(f"{layer_name(linear)}.part{number}.{leaf}", program.attribute(tensor)[rows])
        for leaf, tensor in zip(("weight", "bias"), tensors, strict=False)
        if isinstance(tensor, Node)
    ]
    return rewriter.call(aten.linear.default, source, *read)


def _narrow_branch(
    rewriter: Rewriter, found: Fused, columns: Columns, blocks: dict[tuple[int, int, int], Node]
) -> Node:
    """The branch with those columns of B only."""
    assert found.product is not None
    low_rank, copies = found.product.args
    assert isinstance(copies, Node)
    new = rewriter.call(aten.bmm.default, low_rank, columns.pick(rewriter, copies, blocks))
    for view in found.views:
        new = rewriter.call(aten.view.default, new, [*_sizes(view)[:-1], columns.count])
    return new


def _sizes(view: Node) -> list[int]:
    """Sizes as a view spells them, -1 included."""
    sizes = view.args[1]
    assert isinstance(sizes, list | tuple)
    return list(sizes)
