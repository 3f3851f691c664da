"""Take one of several vectors side by side as a slice of the last dimension.

Before (L vectors of width P):
    %0: f32[N, T, P] = aten.select(%x, 2, i)
After:
    %1: f32[N, T, L*P] = aten.reshape(%x, [N, -1, L*P])
    %0: f32[N, T, P] = aten.slice(%1, 2, i*P, (i+1)*P)

Requires: nothing. Ensures: nothing; selections from tables and along other dimensions stay.
Numerics: EXACT.
Why: later passes write cuts of the last dimension as products and know their derivative. Gemma 4 selects each layer's
own embedding, Persimmon selects queries, keys and values.
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
from prgec.passes.shapes import Size, dtype_of, shape_of, view_sizes

aten = torch.ops.aten


@dataclass(frozen=True)
class SelectToSlice(Pass):
    """Replace selections along the dimension before the last."""

    name: ClassVar[str] = "select-to-slice"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"fold-constants"})

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every selection of a vector of activations."""
        found = map(match, program.calls(aten.select.int))
        return rewrite_matches(program, found, partial(_rewrite, Rewriter(program, self.name)))


@dataclass(frozen=True)
class Selection:
    """Elements `begin` to `begin + width` of a value viewed with the sizes `flat`."""

    node: Node
    flat: list[int]
    begin: int
    width: int


def match(node: Node) -> Selection | None:
    """Return a selection of one of several vectors; None for any other."""
    source, dim, index = node.args
    assert isinstance(source, Node) and isinstance(dim, int)
    sizes = shape_of(source)
    if len(sizes) < 3 or dim % len(sizes) != len(sizes) - 2 or dtype_of(source) != torch.float32:
        return None
    flat = _flat_sizes(sizes)
    if flat is None or source.op == "get_attr" or not isinstance(index, int):
        return None
    count, width = int(sizes[-2]), int(sizes[-1])
    return Selection(node, flat, index % count * width, width)


def _flat_sizes(sizes: tuple[Size, ...]) -> list[int] | None:
    """The sizes with the last two as one; None where those depend on T."""
    count, width = sizes[-2:]
    if not isinstance(count, int) or not isinstance(width, int):
        return None
    return view_sizes((*sizes[:-2], count * width))


def _rewrite(rewriter: Rewriter, found: Selection) -> None:
    with rewriter.before(found.node):
        flat = rewriter.call(aten.reshape.default, found.node.args[0], found.flat)
        last = len(found.flat) - 1
        part = rewriter.call(aten.slice.Tensor, flat, last, found.begin, found.begin + found.width)
    rewriter.replace(found.node, part)
