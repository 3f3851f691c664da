"""Brings a gradient into shape with ops that a delegate takes: transposed, summed over what was repeated, viewed again.

Letters: D inputs, O outputs, T tokens.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from prgec.errors import PassError
from prgec.passes.infra import describe
from prgec.passes.reverse import GradientTape
from prgec.passes.shapes import dynamic_dims, is_same_shape, is_same_size, multiple_of, shape_of, view_sizes
from prgec.passes.weights import TRANSPOSED

aten = torch.ops.aten


def product_with_transposed(tape: GradientTape, gradient: Node, weight: Node) -> Node:
    """`gradient` [..., O] times the constant [O, D] that `weight` reads: a linear with a constant [D, O] beside it.

    Its name follows the layer's, `<path>.transposed.weight`: passes that quantise layers find it like any other. One
    row is spread by a product with its values instead: as a column it would be the same bytes in another shape, and
    XNNPACK's cache of packed weights may take one for the other (backends/xnnpack_weights.py).
    """
    value = tape.rewriter.program.attribute(weight).detach()
    owner, _, leaf = str(weight.target).rpartition(".")
    name = f"{owner}{TRANSPOSED}.{leaf if leaf == 'weight' else f'{leaf}_T'}".removeprefix(".")
    if len(value) == 1:
        return tape.call(aten.mul.Tensor, gradient, tape.rewriter.constant(name, value[0].clone()))
    # A view, so that a weight that is quantised later is never copied. A weight with one column is copied: it counts as
    # contiguous either way, and the strides of its view say that dimensions are swapped.
    is_column = value.shape[1] == 1
    weight_T = value.t().clone(memory_format=torch.contiguous_format) if is_column else value.t()
    return tape.call(aten.linear.default, gradient, tape.rewriter.constant(name, weight_T))


def transposed(tape: GradientTape, node: object) -> Node:
    """The last two of three dimensions swapped; a swap of a swap is what was there before."""
    assert isinstance(node, Node)
    if node.target is aten.transpose.int and set(node.args[1:]) in ({1, 2}, {-1, -2}):
        source = node.args[0]
        assert isinstance(source, Node)
        return source
    return tape.call(aten.transpose.int, node, 1, 2)


def reduced(tape: GradientTape, gradient: Node, source: object, node: Node) -> Node:
    """The sum of `gradient` over the dimensions of `source` that broadcasting repeated."""
    assert isinstance(source, Node)
    target, found = shape_of(source), shape_of(gradient)
    if is_same_shape(target, found):
        return gradient
    if len(target) == len(found):
        repeated = [d for d in range(len(found)) if not is_same_size(target[d], found[d])]
        if all(is_same_size(target[d], 1) and isinstance(found[d], int) for d in repeated):
            for dim in repeated:
                gradient = _sum_over(tape, gradient, dim)
            return gradient
    raise PassError(
        f"{tape.rewriter.rule}: {describe(node)} repeats {list(target)} to {list(found)}; only dimensions of 1 may be "
        "repeated where a gradient flows, and not to a length that varies"
    )


def _sum_over(tape: GradientTape, gradient: Node, dim: int) -> Node:
    """The sum over one dimension, kept as 1; only the last can be summed, so another one is moved there and back."""
    last = len(shape_of(gradient)) - 1
    if dim == last:
        return row_sum(tape, gradient)
    turned = tape.call(aten.transpose.int, gradient, dim, last)
    return tape.call(aten.transpose.int, row_sum(tape, turned), dim, last)


def row_sum(tape: GradientTape, node: Node) -> Node:
    """The sum over the last dimension, kept as 1: a product with ones."""
    ones = tape.rewriter.folded(torch.ones(1, int(shape_of(node)[-1])))
    return tape.call(aten.linear.default, node, ones)


def reshaped_like(tape: GradientTape, gradient: Node, source: Node, node: Node) -> Node:
    """`gradient` in the shape of `source`."""
    sizes = view_sizes(shape_of(source))
    if sizes is None:
        raise PassError(f"{tape.rewriter.rule}: {describe(node)} reads a shape with two sizes that depend on T")
    return tape.call(aten.reshape.default, _split(tape, gradient, source), sizes)


def _split(tape: GradientTape, gradient: Node, source: Node) -> Node:
    """Split c*T into c and T first, where `source` has T: one view that moves both makes the tracer guard on T."""
    dims, wanted = dynamic_dims(gradient), dynamic_dims(source)
    if not dims or not wanted:
        return gradient
    sizes = list(shape_of(gradient))
    times = multiple_of(sizes[dims[0]], shape_of(source)[wanted[0]])
    if times is None or times == 1:
        return gradient
    outer, inner = view_sizes(sizes[: dims[0]]), view_sizes(sizes[dims[0] + 1 :])
    assert outer is not None and inner is not None
    return tape.call(aten.reshape.default, gradient, [*outer, times, -1, *inner])
