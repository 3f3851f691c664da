"""Pick the label positions by a product with one-hot rows.

Before:
    %0: i64[N, K, D] = aten.expand(aten.unsqueeze(label_pos, -1), [-1, -1, D])
    %1: f32[N, K, D] = aten.gather(%h, 1, %0)
After:
    %0: bool[N, K, T] = aten.eq(aten.unsqueeze(label_pos, -1), @folded.c0)
    %1: f32[N, K, T] = aten.to.dtype(%0, f32)
    %2: f32[N, K, D] = aten.bmm(%1, %h)

Requires: select-label-tokens. Ensures: nothing.
Numerics: EXACT for finite activations (one product with 1 and zeros).
Why: most delegates gather no rows, and the HTP gathers wrong ones from large activations (docs/qnn.md); this way the
final norm and the LM head stay in the delegate of the layers. The one-hot rows are made at the entry.
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
from prgec.passes.select_label_tokens import gathers_positions, label_positions
from prgec.passes.shapes import dtype_of
from prgec.passes.tables import SeqTables

aten = torch.ops.aten


@dataclass(frozen=True)
class LabelGatherToBmm(Pass):
    """Replace gathers of label positions from activations."""

    name: ClassVar[str] = "label-gather-to-bmm"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"select-label-tokens"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every gather of rows by `label_pos`."""
        rewriter = Rewriter(program, self.name)
        tables = SeqTables(program, rewriter)
        one_hots: dict[Node, Node] = {}
        found = map(match, program.calls(aten.gather.default))
        return rewrite_matches(program, found, partial(_rewrite, rewriter, tables, one_hots))


@dataclass(frozen=True)
class LabelGather:
    """A gather of activations at the label positions i64[N, K]."""

    node: Node
    label_pos: Node


def match(node: Node) -> LabelGather | None:
    """Return a gather of f32 rows by the input `label_pos`; None for any other gather."""
    label_pos = label_positions(node.args[2]) if gathers_positions(node) else None
    if label_pos is None or label_pos.op != "placeholder" or dtype_of(node) != torch.float32:
        return None
    return LabelGather(node, label_pos)


def _rewrite(rewriter: Rewriter, tables: SeqTables, one_hots: dict[Node, Node], gather: LabelGather) -> None:
    if gather.label_pos not in one_hots:
        one_hots[gather.label_pos] = _one_hot(rewriter, tables, gather.label_pos)
    with rewriter.before(gather.node):
        rows = rewriter.call(aten.bmm.default, one_hots[gather.label_pos], gather.node.args[0])
    rewriter.replace(gather.node, rows)


def _one_hot(rewriter: Rewriter, tables: SeqTables, label_pos: Node) -> Node:
    positions = tables.cut(torch.arange(rewriter.program.max_seq_len()), [0])
    with rewriter.before(positions.next):
        chosen = rewriter.call(aten.eq.Tensor, rewriter.call(aten.unsqueeze.default, label_pos, -1), positions)
        return rewriter.call(aten.to.dtype, chosen, torch.float32)
