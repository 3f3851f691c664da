"""Graphs of one or a few ops, for each derivative rule what it has to do."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import Node

from tests.passes.leaves import ROWS, WIDTH, Leaves, MakeNode, binary, unary

aten = torch.ops.aten


def twice(op: Callable[..., Tensor]) -> MakeNode:
    def make(b: Leaves) -> Node:
        x = b.leaf(2, 3)
        return b.call(op, x, x)

    return make


def by_constant(op: Callable[..., Tensor], *shape: int) -> MakeNode:
    """The leaf comes first and may be repeated to the constant's shape."""
    return lambda b: b.call(op, b.leaf(2, 3, 1 if shape[-1:] == (7,) else 4), b.constant(*shape) if shape else 0.7)


def linear(b: Leaves) -> Node:
    return b.call(aten.linear.default, b.leaf_T(), b.constant(5, WIDTH), b.constant(5))


def linear_twice_by_one_weight(b: Leaves) -> Node:
    weight = b.constant(WIDTH, WIDTH)
    return b.call(aten.linear.default, b.call(aten.linear.default, b.leaf_T(), weight), weight)


def bmm_over_t(b: Leaves) -> Node:
    """As B meets all rows: T inside the product of its gradient."""
    x = b.call(aten.reshape.default, b.leaf_T(), [1, -1, WIDTH])
    return b.call(aten.bmm.default, x, b.leaf(1, WIDTH, 3))


def bmm_of_transposed(b: Leaves) -> Node:
    """A swap of a swap is what was there before."""
    swapped = b.call(aten.transpose.int, b.leaf(2, 5, 4), -2, -1)
    return b.call(aten.bmm.default, b.leaf(2, 3, 4), swapped)


def bmm_with_constant(b: Leaves) -> Node:
    return b.call(aten.bmm.default, b.constant(2, 3, 4), b.call(aten.bmm.default, b.leaf(2, 4, 5), b.constant(2, 5, 3)))


def rsqrt(b: Leaves) -> Node:
    x = b.leaf(3, 5)
    return b.call(aten.rsqrt.default, b.call(aten.add.Tensor, b.call(aten.mul.Tensor, x, x), 0.1))


def pow_positive(exponent: float) -> MakeNode:
    def make(b: Leaves) -> Node:
        x = b.leaf(3, 5)
        return b.call(aten.pow.Tensor_Scalar, b.call(aten.add.Tensor, b.call(aten.mul.Tensor, x, x), 0.1), exponent)

    return make


def wide(op: Callable[..., Tensor]) -> MakeNode:
    """Values far out on both sides."""
    return lambda b: b.call(op, b.call(aten.mul.Tensor, b.leaf(8, 9), 4.0))


def near_zero(op: Callable[..., Tensor]) -> MakeNode:
    """Where a quotient by the square of the values says nothing."""
    return lambda b: b.call(op, b.call(aten.mul.Tensor, b.leaf(3, 5), 1e-120))


def attention(b: Leaves) -> Node:
    """Scores over a length that varies, which only weigh values; every operand gets its gradient."""
    q, k, v = (b.leaf_T() for _ in range(3))
    scores = b.call(aten.bmm.default, q, b.call(aten.transpose.int, k, 1, 2))
    return b.call(aten.bmm.default, b.call(aten.softmax.int, scores, -1), v)


def attention_to_constants(b: Leaves) -> Node:
    """The weights get a gradient where the values need none."""
    scores = b.call(aten.bmm.default, b.leaf_T(), b.constant(ROWS, WIDTH, 3))
    return b.call(aten.bmm.default, b.call(aten.softmax.int, scores, 2), b.constant(ROWS, 3, 5))


def softmax_read_twice(b: Leaves) -> Node:
    """Weights that are read besides, and over a fixed length."""
    weights = b.call(aten.softmax.int, b.leaf(2, 3, 4), -1)
    return b.call(aten.mul.Tensor, b.call(aten.bmm.default, weights, b.leaf(2, 4, 4)), weights)


def softmax_that_is_weighed(b: Leaves) -> Node:
    """On the right of a product it weighs no values."""
    return b.call(aten.bmm.default, b.leaf(2, 5, 3), b.call(aten.softmax.int, b.leaf(2, 3, 4), -1))


def heads(op: Callable[..., Tensor]) -> MakeNode:
    """Into heads, rows and heads together, and back: c*T is made and taken apart."""

    def make(b: Leaves) -> Node:
        split = b.call(op, b.leaf_T(), [ROWS, -1, 2, 2])
        grouped = b.call(aten.reshape.default, b.call(aten.transpose.int, split, 1, 2), [2 * ROWS, -1, 2])
        back = b.call(aten.transpose.int, b.call(aten.reshape.default, grouped, [ROWS, 2, -1, 2]), 1, 2)
        return b.call(aten.reshape.default, back, [ROWS, -1, WIDTH])

    return make


def rows_together(op: Callable[..., Tensor]) -> MakeNode:
    return lambda b: b.call(op, b.leaf_T(), [1, -1, WIDTH])


def cat(b: Leaves) -> Node:
    """Parts of three widths; one is frozen, one comes twice."""
    parts = [b.leaf(2, 3, 1), b.constant(2, 3, 2), b.leaf(2, 3, 4)]
    return b.call(aten.cat.default, [*parts, parts[0]], -1)


def cat_over_t(b: Leaves) -> Node:
    return b.call(aten.cat.default, [b.leaf_T(), b.leaf_T(3)], 2)


def split(op: Callable[..., Tensor], *arguments: object) -> MakeNode:
    """Both parts are read, the first one twice."""

    def make(b: Leaves) -> Node:
        parts = b.call(op, b.leaf(2, 3, 6), *arguments)
        first, second = (b.call(operator.getitem, parts, index) for index in range(2))
        return b.call(aten.cat.default, [first, second, first], -1)

    return make


def read_three_times(b: Leaves) -> Node:
    x = b.leaf(3, 4)
    return b.call(aten.add.Tensor, b.call(aten.mul.Tensor, x, x), b.call(aten.tanh.default, x))


def largest(b: Leaves) -> Node:
    """The largest values weigh; so do others of the same row."""
    x = b.leaf(3, 5)
    values = b.call(operator.getitem, b.call(aten.topk.default, x, 2), 0)
    return b.call(aten.mul.Tensor, values, values)


def largest_of_matrices(b: Leaves) -> Node:
    return b.call(operator.getitem, b.call(aten.topk.default, b.leaf(2, 3, 5), 2), 0)


def largest_over_t(b: Leaves) -> Node:
    return b.call(operator.getitem, b.call(aten.topk.default, b.leaf_T(), 2, -1), 0)


def picked(b: Leaves) -> Node:
    """One element is picked twice."""
    indices = b.tensor("indices", torch.tensor([[4, 0, 4], [1, 2, 3]]))
    return b.call(aten.gather.default, b.leaf(2, 5), 1, indices)


def between(low: float, high: float) -> MakeNode:
    return lambda b: b.call(aten.clamp.default, b.leaf(8, 9), low, high)


def logarithm(b: Leaves) -> Node:
    x = b.leaf(3, 5)
    return b.call(aten.log.default, b.call(aten.add.Tensor, b.call(aten.mul.Tensor, x, x), 0.1))


def shares(b: Leaves) -> Node:
    """Values over their sum, as routers weigh experts."""
    positive = b.call(aten.exp.default, b.leaf(2, 3, 4))
    return b.call(aten.div.Tensor, positive, b.call(aten.sum.dim_IntList, positive, [-1], True))


CASES: tuple[tuple[object, str, MakeNode], ...] = (
    (aten.linear.default, "bias", linear),
    (aten.linear.default, "shared weight", linear_twice_by_one_weight),
    (aten.linear.default, "one row", lambda b: b.call(aten.linear.default, b.leaf_T(), b.constant(1, WIDTH))),
    (aten.bmm.default, "plain", binary(aten.bmm.default, (2, 3, 4), (2, 4, 5))),
    (aten.bmm.default, "over T", bmm_over_t),
    (aten.bmm.default, "transposed", bmm_of_transposed),
    (aten.bmm.default, "constants", bmm_with_constant),
    (aten.add.Tensor, "plain", binary(aten.add.Tensor)),
    (aten.add.Tensor, "twice", twice(aten.add.Tensor)),
    (aten.add.Tensor, "first repeated", binary(aten.add.Tensor, (2, 3, 1))),
    (aten.add.Tensor, "second repeated", binary(aten.add.Tensor, (2, 3, 4), (2, 3, 1))),
    (aten.add.Tensor, "rows repeated", binary(aten.add.Tensor, (1, 3, 4))),
    (aten.mul.Tensor, "middle repeated", binary(aten.mul.Tensor, (2, 1, 4))),
    (aten.mul.Tensor, "two repeated", binary(aten.mul.Tensor, (2, 1, 3, 1), (2, 5, 3, 4))),
    (aten.add.Tensor, "number", by_constant(aten.add.Tensor)),
    (aten.add.Tensor, "vector", by_constant(aten.add.Tensor, 4)),
    (aten.add.Tensor, "repeated by constant", by_constant(aten.add.Tensor, 2, 3, 7)),
    (aten.add.Tensor, "read three times", read_three_times),
    (aten.sub.Tensor, "plain", binary(aten.sub.Tensor)),
    (aten.sub.Tensor, "first repeated", binary(aten.sub.Tensor, (2, 3, 1))),
    (aten.sub.Tensor, "second repeated", binary(aten.sub.Tensor, (2, 3, 4), (2, 3, 1))),
    (aten.sub.Tensor, "from constant", lambda b: b.call(aten.sub.Tensor, b.constant(3, 4), b.leaf(3, 4))),
    (aten.mul.Tensor, "plain", binary(aten.mul.Tensor)),
    (aten.mul.Tensor, "square", twice(aten.mul.Tensor)),
    (aten.mul.Tensor, "first repeated", binary(aten.mul.Tensor, (2, 3, 1))),
    (aten.mul.Tensor, "second repeated", binary(aten.mul.Tensor, (2, 3, 4), (2, 3, 1))),
    (aten.mul.Tensor, "number", by_constant(aten.mul.Tensor)),
    (aten.mul.Tensor, "vector", by_constant(aten.mul.Tensor, 4)),
    (aten.mul.Tensor, "over T", lambda b: b.call(aten.mul.Tensor, b.leaf_T(), b.leaf_T(1))),
    (aten.div.Tensor, "number", by_constant(aten.div.Tensor)),
    (aten.div.Tensor, "vector", by_constant(aten.div.Tensor, 4)),
    (aten.div.Tensor, "repeated by constant", by_constant(aten.div.Tensor, 2, 3, 7)),
    (aten.div.Tensor, "plain", binary(aten.div.Tensor)),
    (aten.div.Tensor, "shares", shares),
    (aten.div.Tensor, "by repeated", binary(aten.div.Tensor, (2, 3, 4), (2, 3, 1))),
    (aten.neg.default, "plain", unary(aten.neg.default)),
    (aten.pow.Tensor_Scalar, "square", unary(aten.pow.Tensor_Scalar, 2)),
    (aten.pow.Tensor_Scalar, "cube", unary(aten.pow.Tensor_Scalar, 3.0)),
    (aten.pow.Tensor_Scalar, "first power", unary(aten.pow.Tensor_Scalar, 1)),
    (aten.pow.Tensor_Scalar, "root", pow_positive(0.5)),
    (aten.pow.Tensor_Scalar, "inverse", pow_positive(-1)),
    (aten.rsqrt.default, "plain", rsqrt),
    (aten.tanh.default, "wide", wide(aten.tanh.default)),
    (aten.sigmoid.default, "wide", wide(aten.sigmoid.default)),
    (aten.silu.default, "wide", wide(aten.silu.default)),
    (aten.relu.default, "wide", wide(aten.relu.default)),
    (aten.gelu.default, "wide", wide(aten.gelu.default)),
    (aten.gelu.default, "near zero", near_zero(aten.gelu.default)),
    (aten.exp.default, "wide", wide(aten.exp.default)),
    (aten.log.default, "plain", logarithm),
    (aten.clamp.default, "both", between(-0.5, 0.7)),
    (aten.clamp.default, "lower", between(-0.5, math.inf)),
    (aten.clamp.default, "upper", lambda b: b.call(aten.clamp.default, b.leaf(8, 9), None, 0.2)),
    (aten.softmax.int, "attention", attention),
    (aten.softmax.int, "fixed values", attention_to_constants),
    (aten.softmax.int, "alone", unary(aten.softmax.int, -1)),
    (aten.softmax.int, "over T", lambda b: b.call(aten.softmax.int, b.leaf_T(), -1)),
    (aten.softmax.int, "read twice", softmax_read_twice),
    (aten.softmax.int, "weighed", softmax_that_is_weighed),
    (aten.view.default, "heads", heads(aten.view.default)),
    (aten.view.default, "rows together", rows_together(aten.view.default)),
    (aten.reshape.default, "heads", heads(aten.reshape.default)),
    (aten.reshape.default, "rows together", rows_together(aten.reshape.default)),
    (aten.unsqueeze.default, "plain", unary(aten.unsqueeze.default, 1)),
    (aten.unsqueeze.default, "over T", lambda b: b.call(aten.unsqueeze.default, b.leaf_T(), 2)),
    (aten.squeeze.dim, "plain", lambda b: b.call(aten.squeeze.dim, b.leaf(3, 1, 4), 1)),
    (aten.squeeze.dim, "over T", lambda b: b.call(aten.squeeze.dim, b.leaf_T(1), -1)),
    (aten.squeeze.dim, "nothing to drop", unary(aten.squeeze.dim, 0)),
    (aten.transpose.int, "over T", lambda b: b.call(aten.transpose.int, b.leaf_T(), 1, -1)),
    (aten.permute.default, "turn", lambda b: b.call(aten.permute.default, b.leaf(2, 3, 4), [1, 2, 0])),
    (aten.permute.default, "over T", lambda b: b.call(aten.permute.default, b.leaf_T(), [1, 2, 0])),
    (aten.permute.default, "negative", lambda b: b.call(aten.permute.default, b.leaf(2, 3, 4), [-1, 0, 1])),
    (aten.clone.default, "plain", unary(aten.clone.default)),
    (aten.contiguous.default, "plain", unary(aten.contiguous.default)),
    (aten.cat.default, "three widths", cat),
    (aten.cat.default, "over T", cat_over_t),
    (aten.slice.Tensor, "middle", lambda b: b.call(aten.slice.Tensor, b.leaf(2, 3, 6), 2, 1, 4)),
    (aten.slice.Tensor, "to the end", lambda b: b.call(aten.slice.Tensor, b.leaf(3, 5), -1, -2, 2**63 - 1)),
    (aten.gather.default, "twice", picked),
    (aten.sum.dim_IntList, "kept", unary(aten.sum.dim_IntList, [1], True)),
    (aten.sum.dim_IntList, "dropped", unary(aten.sum.dim_IntList, [-1])),
    (aten.sum.dim_IntList, "of matrices", lambda b: b.call(aten.sum.dim_IntList, b.leaf(2, 3, 5), [-1])),
    (aten.sum.dim_IntList, "over T", lambda b: b.call(aten.sum.dim_IntList, b.leaf_T(), [2])),
    (operator.getitem, "largest", largest),
    (operator.getitem, "largest of matrices", largest_of_matrices),
    (operator.getitem, "largest over T", largest_over_t),
    (operator.getitem, "chunk", split(aten.chunk.default, 2, -1)),
    (operator.getitem, "split", split(aten.split_with_sizes.default, [1, 5], 2)),
)
