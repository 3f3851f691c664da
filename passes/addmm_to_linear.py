"""Write a Conv1D, GPT-2's projection, as the linear layer it is.

Before:
    %0: f32[N*T, D] = aten.view(%x, [-1, D])
    %1: f32[N*T, O] = aten.addmm(@site.bias, %0, @site.weight)
    %2: f32[N, T, O] = aten.view(%1, [N, -1, O])
After:
    %0: f32[N, T, O] = aten.linear(%x, @site.weight, @site.bias)

`site.weight` is transposed once, from [D, O] to the [O, D] of a linear layer.

Requires: nothing. Ensures: nothing (a product with something other than a weight of its own stays, with a reason).
Numerics: ROUNDING (the same products; the kernels may sum in another order).
Why: a site of LoRA, a quantised layer and an LM head are linear layers to every later pass, and the
module path in the weight's name is how a user names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import Pass, PassResult, Role, Tier, describe, rewrite_matches, rounding
from prgec.passes.program import GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import is_same_shape, is_same_size, shape_of

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten.reshape.default)


@dataclass(frozen=True)
class AddmmToLinear(Pass):
    """Replace addmm with a weight of its own by linear."""

    name: ClassVar[str] = "addmm-to-linear"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"canonicalize"})

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every addmm; calls that share a weight are rewritten together or not at all."""
        rewriter = Rewriter(program, self.name)
        # All at once: the first one rewritten turns the weight for the others.
        found = [match(program, node) for node in program.calls(aten.addmm.default)]
        turned: set[str] = set()

        def rewrite(conv: Conv1D) -> None:
            name = str(conv.weight.target)
            if name not in turned:
                rewriter.overwrite(name, program.attribute(conv.weight).t().contiguous())
                turned.add(name)
            _rewrite(rewriter, conv.node)

        return rewrite_matches(program, found, rewrite)


@dataclass(frozen=True)
class Conv1D:
    """An addmm that is a linear layer, with the node that reads its weight [D, O]."""

    node: Node
    weight: Node


def match(program: GraphProgram, node: Node) -> Conv1D | Refusal:
    """Return the layer an addmm is, or why it stays."""
    weight = node.args[2]
    reason = _why_not_linear(node)
    if reason or not isinstance(weight, Node):
        return Refusal(describe(node), reason)
    for read, user in _reads(program, weight):
        if user.target is not aten.addmm.default or user.args[2] is not read:
            return Refusal(describe(node), f"{weight.target} has other readers")
        if _why_not_linear(user):
            return Refusal(describe(node), f"{weight.target} is read by {describe(user)} too, which stays")
    return Conv1D(node, weight)


def _why_not_linear(node: Node) -> str:
    """Why an addmm by itself is not a linear layer; empty if it is."""
    bias, _, weight = node.args
    if node.kwargs:
        return f"it scales its terms: {', '.join(node.kwargs)}"
    if not isinstance(weight, Node) or weight.op != "get_attr":
        return "it multiplies two activations"
    if not isinstance(bias, Node) or bias.op != "get_attr" or len(shape_of(bias)) != 1:
        return "its bias is not a vector of the checkpoint"
    return ""


def _reads(program: GraphProgram, weight: Node) -> list[tuple[Node, Node]]:
    """Everybody who reads the tensor `weight` reads, through whichever node."""
    same = [node for node in program.graph.find_nodes(op="get_attr") if node.target == weight.target]
    return [(read, user) for read in same for user in read.users]


def _rewrite(rewriter: Rewriter, node: Node) -> None:
    bias, flat, weight = node.args
    assert isinstance(flat, Node)
    source = unflattened(flat)
    shape = [*shape_of(source)[:-1], shape_of(node)[-1]]
    views = [user for user in node.users if user.target in _VIEWS and is_same_shape(shape_of(user), shape)]
    if len(views) < len(node.users):
        source, views = flat, [node]
    with rewriter.before(node):
        linear = rewriter.call(aten.linear.default, source, weight, bias)
    for view in views:
        rewriter.replace(view, linear)


def unflattened(flat: Node) -> Node:
    """The node whose rows a view merged, or the node itself."""
    source = flat.args[0] if flat.target in _VIEWS else flat
    assert isinstance(source, Node)
    return source if is_same_size(shape_of(source)[-1], shape_of(flat)[-1]) else flat
