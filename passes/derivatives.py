"""Derivatives of the ops of a legal graph: one table, a few lines a row.

A rule `rule(tape, node, dy)` yields (argument, share of the argument's gradient) for every argument that needs one;
`dy` is the gradient of the node's result and has its shape. Rules add nothing that a delegate would refuse: products
with a constant are `aten.linear` with the transposed constant, sums over the last dimension are products with ones,
and nothing is reduced over a symbolic T but by `bmm`. The layout of the added nodes is as free as that of any graph
before `transpose-to-copy` and `reshape-to-view`.

Letters: N rows, T tokens, D inputs, O outputs, G groups of a bmm.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from prgec.errors import PassError
from prgec.passes.cuts import cuts_of
from prgec.passes.elementwise_derivatives import ONE_OPERAND
from prgec.passes.gradient_shapes import product_with_transposed, reduced, reshaped_like, row_sum, transposed
from prgec.passes.infra import describe
from prgec.passes.program import argument
from prgec.passes.reverse import GradientTape, Rule, Shares
from prgec.passes.shapes import dtype_of, dynamic_dims, shape_of

aten = torch.ops.aten


def linear(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = x W^T + b` with constant W [O, D]: `dx = dy W`, a linear with the transposed weight where O > 1.

    A branch beside the layer has a view of dy by then, and the product reads that one: nothing holds both.
    """
    x, weight = node.args[:2]
    if any(tape.needs(each) for each in node.args[1:]):
        raise PassError(f"{tape.rewriter.rule}: the weight of {describe(node)} is trained; only branches are")
    assert isinstance(weight, Node) and isinstance(x, Node)
    seen = _last_view(dy)
    dx = product_with_transposed(tape, seen, weight)
    yield x, dx if seen is dy else reshaped_like(tape, dx, x, node)


def _last_view(dy: Node) -> Node:
    """The end of the views of a gradient that one product reads, if it is as wide; else the gradient."""
    last = dy
    while found := [each for each in last.users if each.target in (aten.view.default, aten.reshape.default)]:
        last = found[0]
    return last if shape_of(last)[-1] == shape_of(dy)[-1] else dy


def bmm(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`Y = A B` for each of G: `dA = dY B^T`, `dB = A^T dY`."""
    a, b = node.args
    if tape.needs(a):
        yield a, tape.call(aten.bmm.default, dy, transposed(tape, b))
    if tape.needs(b):
        yield b, tape.call(aten.bmm.default, transposed(tape, a), dy)


def add(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = a + b`."""
    _check_unscaled(tape, node)
    for each in node.args[:2]:
        if tape.needs(each):
            yield each, reduced(tape, dy, each, node)


def sub(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = a - b`."""
    _check_unscaled(tape, node)
    a, b = node.args[:2]
    if tape.needs(a):
        yield a, reduced(tape, dy, a, node)
    if tape.needs(b):
        yield b, reduced(tape, tape.call(aten.neg.default, dy), b, node)


def _check_unscaled(tape: GradientTape, node: Node) -> None:
    if argument(node, 2, "alpha", 1) != 1:
        raise PassError(f"{tape.rewriter.rule}: {describe(node)} scales its second addend; it has no derivative")


def mul(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = a b`; a square gets both shares."""
    a, b = node.args
    if tape.needs(a):
        yield a, reduced(tape, tape.call(aten.mul.Tensor, dy, b), a, node)
    if tape.needs(b):
        yield b, reduced(tape, tape.call(aten.mul.Tensor, dy, a), b, node)


def div(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = a / c`: `da = dy / c`, `dc = -y da`."""
    a, c = node.args
    share = tape.call(aten.div.Tensor, dy, c)
    if tape.needs(a):
        yield a, reduced(tape, share, a, node)
    if tape.needs(c):
        yield c, reduced(tape, tape.call(aten.neg.default, tape.call(aten.mul.Tensor, share, node)), c, node)


def neg(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = -x`."""
    yield node.args[0], tape.call(aten.neg.default, dy)


def softmax(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """Softmax P of S over the last dimension: `dS = P (dP - rowsum(dP P))`.

    Where P only weighs values, `O = P V`, the row sums are those of dO O (Dao et al., "FlashAttention: Fast and
    Memory-Efficient Exact Attention with IO-Awareness", appendix B.2), over the width of a head and not over T.
    """
    _check_last(tape, node, argument(node, 1, "dim", -1), node)
    total = _weighted_sum(tape, node, dy)
    yield node.args[0], tape.call(aten.mul.Tensor, node, tape.call(aten.sub.Tensor, dy, total))


def _check_last(tape: GradientTape, node: Node, dim: object, of: Node) -> None:
    """Refuse a call that works along another dimension of `of` than the last."""
    if dim not in (-1, len(shape_of(of)) - 1):
        raise PassError(f"{tape.rewriter.rule}: {describe(node)} is not over the last dimension")


def _weighted_sum(tape: GradientTape, node: Node, dy: Node) -> Node:
    readers = [user for user in node.users if tape.gradient(user) is not None]
    if len(readers) == 1 and readers[0].target is aten.bmm.default and readers[0].args[0] is node:
        return row_sum(tape, tape.call(aten.mul.Tensor, tape.gradient(readers[0]), readers[0]))
    if isinstance(shape_of(node)[-1], int):
        return row_sum(tape, tape.call(aten.mul.Tensor, dy, node))
    raise PassError(
        f"{tape.rewriter.rule}: {describe(node)} runs over T and does not only weigh values; a derivative cannot sum "
        "over a length that varies",
        hint="compile with a fixed length (--static)",
    )


def reshape(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """A view or reshape: the same elements in the shape from before."""
    source = node.args[0]
    assert isinstance(source, Node)
    yield source, reshaped_like(tape, dy, source, node)


def transpose(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """A swap of two dimensions."""
    yield node.args[0], tape.call(aten.transpose.int, dy, *node.args[1:])


def permute(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """Any order of dimensions."""
    order = node.args[1]
    assert isinstance(order, list | tuple)
    source_of = [int(dim) % len(order) for dim in order]  # type: ignore[arg-type]  # sizes are never symbolic here
    inverse = [source_of.index(dim) for dim in range(len(order))]
    yield node.args[0], tape.call(aten.permute.default, dy, inverse)


def same(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """A copy, or nothing at all."""
    del tape
    yield node.args[0], dy


def cat(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """Parts side by side in the last dimension."""
    parts = node.args[0]
    assert isinstance(parts, list | tuple)
    _check_last(tape, node, argument(node, 1, "dim", 0), node)
    begin = 0
    for part in parts:
        assert isinstance(part, Node)
        end = begin + int(shape_of(part)[-1])
        if tape.needs(part):
            yield part, _columns(tape, dy, begin, end)
        begin = end


def _columns(tape: GradientTape, dy: Node, begin: int, end: int) -> Node:
    """Columns of a gradient: a slice where T is fixed, else a product, since delegates slice only fixed shapes."""
    width = shape_of(dy)[-1]
    if not dynamic_dims(dy) or not isinstance(width, int):
        return tape.call(aten.slice.Tensor, dy, len(shape_of(dy)) - 1, begin, end)
    return tape.call(aten.linear.default, dy, tape.rewriter.folded(torch.eye(width)[begin:end].clone()))


def picked(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y[..., j] = x[..., i_j]` with chosen i: each share goes where its value came from."""
    source, dim, indices = node.args[:3]
    assert isinstance(source, Node) and isinstance(indices, Node)
    _check_last(tape, node, dim, source)
    yield source, _spread(tape, dy, indices, int(shape_of(source)[-1]))


def _spread(tape: GradientTape, dy: Node, indices: Node, width: int) -> Node:
    """`dx[..., i] = sum of dy[..., j] where indices[..., j] = i`."""
    numbers = tape.rewriter.folded(torch.arange(width))
    last = len(shape_of(indices)) - 1
    total: Node | None = None
    for place in range(int(shape_of(indices)[-1])):
        index = tape.call(aten.slice.Tensor, indices, last, place, place + 1)
        is_here = tape.call(aten.to.dtype, tape.call(aten.eq.Tensor, index, numbers), dtype_of(dy))
        share = tape.call(aten.mul.Tensor, is_here, _columns(tape, dy, place, place + 1))
        total = share if total is None else tape.call(aten.add.Tensor, total, share)
    assert total is not None
    return total


def cut(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """A slice of the last dimension, a part of a split (zeros where it was cut off), or the largest values."""
    taker = node.args[0] if node.target is operator.getitem else node
    assert isinstance(taker, Node)
    if taker.target is aten.topk.default:
        yield from _largest(tape, node, taker, dy)
        return
    found = next((each for each in cuts_of(taker) or () if each.node is node), None)
    if found is None:
        raise PassError(f"{tape.rewriter.rule}: {describe(node)} is not a cut of the last dimension")
    behind = int(shape_of(found.source)[-1]) - found.end
    yield found.source, tape.call(aten.constant_pad_nd.default, dy, [found.begin, behind], 0.0)


def _largest(tape: GradientTape, node: Node, topk: Node, dy: Node) -> Shares:
    """The values that `topk` found over the last dimension."""
    source = topk.args[0]
    assert isinstance(source, Node)
    _check_last(tape, node, argument(topk, 2, "dim", -1), source)
    indices = tape.call(operator.getitem, topk, 1)
    yield source, _spread(tape, dy, indices, int(shape_of(source)[-1]))


def row_sums(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """A sum over the last dimension: every element gets the gradient of its sum."""
    source, dims = node.args[:2]
    assert isinstance(source, Node) and isinstance(dims, list | tuple)
    _check_last(tape, node, dims[0] if len(dims) == 1 else None, source)
    column = dy if argument(node, 2, "keepdim", False) else tape.call(aten.unsqueeze.default, dy, -1)
    ones = tape.rewriter.folded(torch.ones(int(shape_of(source)[-1])))
    yield source, tape.call(aten.mul.Tensor, column, ones)


RULES: dict[Any, Rule] = {
    **ONE_OPERAND,
    aten.linear.default: linear,
    aten.bmm.default: bmm,
    aten.add.Tensor: add,
    aten.sub.Tensor: sub,
    aten.mul.Tensor: mul,
    aten.div.Tensor: div,
    aten.neg.default: neg,
    aten.softmax.int: softmax,
    aten.view.default: reshape,
    aten.reshape.default: reshape,
    aten.unsqueeze.default: reshape,
    aten.squeeze.dim: reshape,
    aten.transpose.int: transpose,
    aten.permute.default: permute,
    aten.clone.default: same,
    aten.contiguous.default: same,
    aten.cat.default: cat,
    # Where T is fixed, cuts are legal and stay.
    aten.slice.Tensor: cut,
    operator.getitem: cut,
    aten.gather.default: picked,
    aten.sum.dim_IntList: row_sums,
}
