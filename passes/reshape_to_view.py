"""Say which reshapes copy: a copy, then a view that infers its dynamic size.

Before (the source is transposed, so its memory has another order):
    %0: f32[N, T, D] = aten.reshape(%x, [N, -1, D])
After:
    %0: f32[N, T, H, d] = aten.clone(%x, memory_format=torch.contiguous_format)
    %1: f32[N, T, D] = aten.view(%0, [N, -1, D])

Requires: nothing. Ensures: no reshape of a symbolic T.
Numerics: EXACT.
Why: `reshape` is decomposed with T spelled out as a size, and XNNPACK takes only views whose sizes are numbers or -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier, rewrite_matches
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import Size, dynamic_dims

aten = torch.ops.aten


@dataclass(frozen=True)
class ReshapeToView(Pass):
    """Replace reshapes of dynamic shapes by views, with a copy before the view where memory order demands it."""

    name: ClassVar[str] = "reshape-to-view"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"lower-sdpa", "dualize", "transpose-to-copy"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every reshape whose result depends on T."""
        rewriter = Rewriter(program, self.name)
        # Earlier passes keep shapes but not memory order (an explicit attention is contiguous, the op is not).
        rewriter.refresh_all()
        found = map(match, program.calls(aten.reshape.default))
        return rewrite_matches(program, found, partial(_rewrite, rewriter))

    def ensures(self, program: GraphProgram) -> list[str]:
        """Only fixed shapes are still reshaped."""
        return [f"%{node.name} is left" for node in filter(match, program.calls(aten.reshape.default))]


def match(node: Node) -> Node | None:
    """Return a reshape whose result depends on T; None for one of fixed shape."""
    return node if dynamic_dims(node) else None


def _rewrite(rewriter: Rewriter, node: Node) -> None:
    source, sizes = node.args
    assert isinstance(source, Node)
    with rewriter.before(node):
        if not is_contiguous(source):
            source = rewriter.call(aten.clone.default, source, memory_format=torch.contiguous_format)
        view = rewriter.call(aten.view.default, source, sizes)
    rewriter.replace(node, view)


def is_contiguous(node: Node) -> bool:
    """Whether the memory of a node's value is in the order of its dimensions, without gaps."""
    value, expected = node.meta["val"], 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if _hint(size) == 1:
            continue
        if _hint(stride) != expected:
            return False
        expected *= _hint(size)
    return True


def _hint(size: Size) -> int:
    """The size at the traced T, so that asking does not guard on T."""
    return size if isinstance(size, int) else int(size.node.hint)
