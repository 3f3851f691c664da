"""Write composite ops as the few ops that every later pass knows, as torch does when it runs them.

Before:
    %1: f32[N, T, D] = aten.square(%x)
    %2: f32[N, T, 2, D / 2] = aten.unflatten(%1, 2, [2, D / 2])
After:
    %1: f32[N, T, D] = aten.pow.Tensor_Scalar(%x, 2)
    %2: f32[N, T, 2, D / 2] = aten.view(%1, [N, T, 2, D / 2])

Requires: nothing. Ensures: none of these ops is left.
Numerics: EXACT (torch computes these ops from the same parts).
Why: models spell one computation in many ways. Derivatives and delegates are written for one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier, rewrite_matches
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter

aten = torch.ops.aten

_COPYING_VIEW = aten._unsafe_view.default


def _rms_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """The root-mean-square norm; torch's own decomposition adds `eps` in place."""
    dims = list(range(-len(shape), 0))
    square = torch.mean(torch.pow(x, 2), dims, True)
    normed = x * torch.rsqrt(square + (torch.finfo(x.dtype).eps if eps is None else eps))
    return normed if weight is None else normed * weight


def _repeat_interleave(x: torch.Tensor, repeats: int, dim: int) -> torch.Tensor:
    """Every element of one dimension several times; torch's own decomposition counts elements by their values."""
    dim %= x.dim()
    repeated = torch.stack([x] * repeats, dim + 1)
    return torch.flatten(repeated, dim, dim + 1)


def _baddbmm(
    added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> torch.Tensor:
    """A batched product and what is added to it, each scaled."""
    product = torch.bmm(a, b)
    product = product if alpha == 1 else product * alpha
    return product + (added if beta == 1 else added * beta)


COMPOSITES: dict[Callable[..., Any], Callable[..., torch.Tensor]] = {
    aten.flatten.using_ints: aten.flatten.using_ints,
    aten.unflatten.int: aten.unflatten.int,
    aten.square.default: aten.square.default,
    aten.rms_norm.default: _rms_norm,
    aten.baddbmm.default: _baddbmm,
    aten.repeat_interleave.self_int: _repeat_interleave,
}


@dataclass(frozen=True)
class DecomposeComposites(Pass):
    """Replace composite ops by their parts."""

    name: ClassVar[str] = "decompose-composites"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every composite op."""
        found = program.calls(*COMPOSITES, _COPYING_VIEW)
        return rewrite_matches(program, found, partial(_rewrite, Rewriter(program, self.name)))

    def ensures(self, program: GraphProgram) -> list[str]:
        """No composite op is left."""
        return [f"%{node.name} {node.target} is left" for node in program.calls(*COMPOSITES, _COPYING_VIEW)]


def _rewrite(rewriter: Rewriter, node: Node) -> None:
    target = node.target
    assert callable(target)
    with rewriter.before(node):
        if target is _COPYING_VIEW:
            parts = _reshape(rewriter, node)
        else:
            parts = rewriter.inline(partial(_run, node, COMPOSITES[target]), *node.all_input_nodes)
    rewriter.replace(node, parts)


def _reshape(rewriter: Rewriter, node: Node) -> Node:
    """The reshape that torch wrote as a copy and a view of the copy."""
    source, sizes = node.args
    assert isinstance(source, Node)
    is_copy = source.target is aten.clone.default and len(source.users) == 1
    return rewriter.call(aten.reshape.default, source.args[0] if is_copy else source, sizes)


def _run(node: Node, parts_of: Callable[..., torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
    """Compute a call from other values of its inputs."""
    value_of = dict(zip(node.all_input_nodes, values, strict=True))
    args = map_arg(node.args, value_of.__getitem__)
    return parts_of(*args, **node.kwargs)
