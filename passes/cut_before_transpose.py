"""Cut the last dimension before it is swapped with the one before it, not after.

Before:
    %1: f32[N, 3*D, T] = aten.transpose(%x, -1, -2)
    %2, %3, %4 = aten.chunk(%1, 3, -2)
After:
    %1, %2, %3 = aten.chunk(%x, 3, -1)
    %4: f32[N, D, T] = aten.transpose(%1, -1, -2)     (and so for the others)

Requires: nothing. Ensures: nothing.
Numerics: EXACT.
Why: later passes move cuts of the last dimension into the layer before it (split-fused-linear). LFM2 cuts what its
convolutions read after it has moved time to the end.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.cuts import SPLITS
from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier, rewrite_matches
from prgec.passes.program import GraphProgram, argument
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import shape_of

aten = torch.ops.aten


@dataclass(frozen=True)
class CutBeforeTranspose(Pass):
    """Move splits of a swapped dimension before the swap."""

    name: ClassVar[str] = "cut-before-transpose"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"canonicalize"})

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every split of a swapped dimension."""
        found = map(match, program.calls(*SPLITS))
        return rewrite_matches(program, found, partial(_rewrite, Rewriter(program, self.name)))


@dataclass(frozen=True)
class SwappedSplit:
    """A split of the dimension before the last of `source` with its last two dimensions swapped."""

    node: Node
    source: Node


def match(node: Node) -> SwappedSplit | None:
    """Return a split to move; None for any other."""
    swapped, dim = node.args[0], argument(node, 2, "dim", 0)
    assert isinstance(swapped, Node) and isinstance(dim, int)
    rank = len(shape_of(swapped))
    if swapped.target is not aten.transpose.int or dim % rank != rank - 2:
        return None
    source, first, second = swapped.args
    assert isinstance(source, Node) and isinstance(first, int) and isinstance(second, int)
    return SwappedSplit(node, source) if {first % rank, second % rank} == {rank - 2, rank - 1} else None


def _rewrite(rewriter: Rewriter, found: SwappedSplit) -> None:
    node = found.node
    with rewriter.before(node):
        assert callable(node.target)
        parts = rewriter.call(node.target, found.source, node.args[1], -1)
        for user in list(node.users):
            assert user.target is operator.getitem
            part = rewriter.call(operator.getitem, parts, user.args[1])
            rewriter.replace(user, rewriter.call(aten.transpose.int, part, -2, -1))
    rewriter.erase(node)
