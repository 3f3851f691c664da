"""Recognise attention written as matmuls, with or without a soft cap, and make it explicit in the form delegates take.

Before (soft-capped at c; repeat_kv made G copies of k and v):
    %1: f32[N, H, T, T] = aten.matmul(%q, aten.transpose(%k, 2, 3))
    %2: f32[N, H, T, T] = aten.div(aten.mul(%1, s), c)
    %3: f32[N, H, T, T] = aten.mul(aten.tanh(%2), c)
    %4: f32[N, H, T, T] = aten.softmax(aten.add(%3, %mask), -1)
    %5: f32[N, H, T, d] = aten.matmul(%4, %v)
After:
    %1: f32[N*KV, T, d] = aten.reshape(aten.mul(%k, s / c))
    %2: f32[N*KV, G*T, T] = aten.bmm(aten.reshape(%q), aten.transpose(%1))
    %3: f32[N*KV, G*T, T] = aten.mul(aten.tanh(%2), c)
    %4: f32[N*KV, G*T, T] = aten.softmax(aten.add(%3, the mask), -1)
    %5: f32[N, H, T, d] = aten.view(aten.bmm(%4, aten.reshape(%v)))

Requires: constant masks (fold-constants). Ensures: nothing; attention it refuses keeps its ops, with a reason.
Numerics: ROUNDING (factors before the cap move to the keys; masks become -1e4, see lower-sdpa).
Why: a matmul of rank 4 becomes views with two sizes that depend on T, which XNNPACK does not take, and keys repeated
for every query head are G times the memory traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.attention import Attention, AttentionLowering, constant_mask, shared_heads
from prgec.passes.infra import Pass, PassResult, Role, Tier, describe, rewrite_matches, rounding
from prgec.passes.program import GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import is_tensor, shape_of

aten = torch.ops.aten

_FACTORS = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
_ELEMENTWISE = (*_FACTORS, aten.tanh.default, aten.sigmoid.default, aten.clamp.default)


@dataclass(frozen=True)
class LowerEagerAttention(Pass):
    """Replace matmul, element-wise ops, softmax and matmul by the explicit form."""

    name: ClassVar[str] = "lower-eager-attention"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"fold-constants"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every attention whose mask is known."""
        lowering = AttentionLowering(program, Rewriter(program, self.name))
        found = (match(program, node) for node in program.calls(aten.matmul.default))
        return rewrite_matches(program, found, lowering.lower)


def match(program: GraphProgram, node: Node) -> Attention | Refusal | None:
    """Return the parts of the attention that ends in `node`, or why it is left alone; None for other products."""
    probabilities, v = node.args
    if not isinstance(probabilities, Node) or probabilities.target is not aten.softmax.int:
        return None
    where = describe(node)
    if not isinstance(v, Node) or len(shape_of(v)) != 4 or len(shape_of(node)) != 4:
        return Refusal(where, "it is not shaped [N, H, T, d]")
    if probabilities.args[1] not in (-1, 3):
        return Refusal(where, f"its softmax runs over dimension {probabilities.args[1]}")
    scores, table = probabilities.args[0], None
    assert isinstance(scores, Node)
    if scores.target is aten.add.Tensor and not scores.kwargs and is_tensor(scores.args[1]):
        table = constant_mask(program, scores.args[1])
        if table is None:
            return Refusal(where, "its mask is not a constant [T, T]")
        scores = scores.args[0]
        assert isinstance(scores, Node)
    product, scale, between = unwrap(scores)
    if product.target is not aten.matmul.default:
        return Refusal(where, f"its scores come from {describe(product)}")
    chain = (product, *_calls_between(product, probabilities), probabilities)
    if any(len(each.users) > 1 for each in chain):
        return Refusal(where, "its scores have other readers")
    q, turned = product.args
    k = transposed(turned)
    if not isinstance(q, Node) or k is None or len(shape_of(q)) != 4:
        return Refusal(where, "its scores are not a product with transposed keys [N, H, T, d]")
    return Attention(node, q, *shared_heads(k, v), table, scale, between)


def unwrap(scores: Node) -> tuple[Node, float, tuple[Node, ...]]:
    """A chain of element-wise calls with constants: (its origin, leading factor, the other calls in order)."""
    chain: list[Node] = []
    node = scores
    while node.target in _ELEMENTWISE and not any(isinstance(arg, Node) for arg in node.args[1:]) and not node.kwargs:
        chain.insert(0, node)
        assert isinstance(node.args[0], Node)
        node = node.args[0]
    scale = 1.0
    while chain and chain[0].target in _FACTORS:
        factor = chain.pop(0)
        value = float(factor.args[1])  # type: ignore[arg-type]
        scale = scale * value if factor.target in _FACTORS[:2] else scale / value
    return node, scale, tuple(chain)


def transposed(turned: object) -> Node | None:
    """The node whose transposition gave keys f32[N, H, d, T]; None for any other node."""
    if not isinstance(turned, Node) or turned.target is not aten.transpose.int or len(shape_of(turned)) != 4:
        return None
    source, first, second = turned.args
    return source if isinstance(source, Node) and {int(first) % 4, int(second) % 4} == {2, 3} else None  # type: ignore[arg-type]


def _calls_between(product: Node, probabilities: Node) -> list[Node]:
    """Calls on the way from the product to the softmax, both excluded."""
    found: list[Node] = []
    node = probabilities.args[0]
    while isinstance(node, Node) and node is not product:
        found.append(node)
        node = node.args[0]
    return found
