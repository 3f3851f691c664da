"""Derivatives of element-wise ops of one operand, for the table in `derivatives.py`.

No delegate compares, so steps are steep ramps that are cut; none has erf, so it is taken from the op's own result.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from prgec.errors import PassError
from prgec.passes.infra import describe
from prgec.passes.program import argument
from prgec.passes.reverse import GradientTape, Rule, Shares

aten = torch.ops.aten

# Added to x^2 to avoid 0 / 0 at x = 0. Smaller than any x^2 that matters, in f32 and in f16.
_SMALLEST_SQUARE, _SMALLEST_SQUARE_HALF = 1e-30, 2.0**-22
# A factor that lifts every positive number that matters above 1, in f32 and in f16.
_STEEP, _STEEP_HALF = 1e30, 2.0**15


def pow_scalar(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = x^n`: `dx = n x^(n-1) dy`."""
    x, exponent = node.args
    assert isinstance(exponent, int | float)
    lower = x if exponent == 2 else tape.call(aten.pow.Tensor_Scalar, x, exponent - 1)
    yield x, tape.call(aten.mul.Tensor, tape.call(aten.mul.Tensor, lower, float(exponent)), dy)


def rsqrt(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = x^(-1/2)`: `dx = -y^3 dy / 2`; y^3 alone may have no place in 16 bits."""
    (x,) = node.args
    share = tape.call(aten.mul.Tensor, dy, -0.5)
    for _ in range(3):
        share = tape.call(aten.mul.Tensor, share, node)
    yield x, share


def tanh(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = tanh x`: `dx = dy (1 - y^2)`."""
    (x,) = node.args
    square = tape.call(aten.mul.Tensor, node, node)
    yield x, tape.call(aten.sub.Tensor, dy, tape.call(aten.mul.Tensor, dy, square))


def sigmoid(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = s(x)`: `dx = dy (y - y^2)`."""
    (x,) = node.args
    slope = tape.call(aten.sub.Tensor, node, tape.call(aten.mul.Tensor, node, node))
    yield x, tape.call(aten.mul.Tensor, dy, slope)


def silu(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = x s(x)`: `dx = dy (s + y - y s)`."""
    (x,) = node.args
    gate = tape.call(aten.sigmoid.default, x)
    rest = tape.call(aten.sub.Tensor, node, tape.call(aten.mul.Tensor, node, gate))
    yield x, tape.call(aten.mul.Tensor, dy, tape.call(aten.add.Tensor, gate, rest))


def relu(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = max(x, 0)`: `dx = dy` where y > 0. No delegate compares, so the step is a steep ramp, cut at 1."""
    (x,) = node.args
    ramp = tape.call(aten.mul.Tensor, node, _STEEP_HALF if tape.half else _STEEP)
    step = tape.call(aten.clamp.default, ramp, 0.0, 1.0)
    yield x, tape.call(aten.mul.Tensor, dy, step)


def clamp(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = min(max(x, a), b)`: `dx = dy` where a < y < b, by steep ramps as in `relu`."""
    lower, upper = argument(node, 1, "min"), argument(node, 2, "max")
    steep = _STEEP_HALF if tape.half else _STEEP
    for limit, sign in ((lower, 1.0), (upper, -1.0)):
        if isinstance(limit, int | float) and math.isfinite(limit):
            inside = tape.call(aten.mul.Tensor, tape.call(aten.sub.Tensor, node, float(limit)), sign * steep)
            dy = tape.call(aten.mul.Tensor, dy, tape.call(aten.clamp.default, inside, 0.0, 1.0))
    yield node.args[0], dy


def gelu(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = x Phi(x)`: `dx = dy (Phi + x phi)`; no delegate has erf, so Phi is 1/2 + (y - x/2) / x."""
    if argument(node, 1, "approximate", "none") != "none":
        raise PassError(f"{tape.rewriter.rule}: {describe(node)} is approximated; run lower-gelu-tanh first")
    call, x = tape.call, node.args[0]
    square = call(aten.mul.Tensor, x, x)
    odd = call(aten.mul.Tensor, call(aten.sub.Tensor, node, call(aten.mul.Tensor, x, 0.5)), x)
    smallest = _SMALLEST_SQUARE_HALF if tape.half else _SMALLEST_SQUARE
    ratio = call(aten.div.Tensor, odd, call(aten.add.Tensor, square, smallest))
    bell = call(aten.exp.default, call(aten.mul.Tensor, square, -0.5))
    density = call(aten.mul.Tensor, bell, 1.0 / math.sqrt(2.0 * math.pi))
    slope = call(aten.add.Tensor, call(aten.add.Tensor, ratio, 0.5), call(aten.mul.Tensor, x, density))
    yield x, call(aten.mul.Tensor, dy, slope)


def exp(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = exp x`: `dx = dy y`."""
    (x,) = node.args
    yield x, tape.call(aten.mul.Tensor, dy, node)


def log(tape: GradientTape, node: Node, dy: Node) -> Shares:
    """`y = log x`: `dx = dy / x`."""
    (x,) = node.args
    yield x, tape.call(aten.div.Tensor, dy, x)


ONE_OPERAND: dict[Any, Rule] = {
    aten.pow.Tensor_Scalar: pow_scalar,
    aten.rsqrt.default: rsqrt,
    aten.tanh.default: tanh,
    aten.sigmoid.default: sigmoid,
    aten.silu.default: silu,
    aten.relu.default: relu,
    aten.clamp.default: clamp,
    aten.gelu.default: gelu,
    aten.exp.default: exp,
    aten.log.default: log,
}
