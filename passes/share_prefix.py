"""Run the blocks before the first trained layer once per example, not once per replica.

Before (the first site lies in block i):
    %h: f32[N, T, D] = ... embedding and blocks 0 to i-1 of tokens
    ... blocks from i on read %h
After:
    %0: i64[B, T] = aten.slice(tokens, 0, 0, B)
    %h: f32[B, T, D] = ... the same of %0
    %1: f32[1, B, T, D] = aten.view(%h, [1, B, -1, D])
    %2: f32[2q, B, T, D] = aten.add(%1, @folded.c0)            zeros f32[2q, 1, 1, 1]: a copy for every replica
    %3: f32[N, T, D] = aten.view(%2, [N, -1, D])
    ... blocks from i on read %3

Rows are ((i*2 + s)*B + b), so the first B rows are the B examples, and all others repeat them. A rewritten program can
distinguish only B rows; its manifest records that, and evaluation feeds B different rows a call.

Requires: sites from inject-lora-fa. Ensures: nothing.
Numerics: ROUNDING (products over B rows may be blocked differently from those over N).
Why: with `inject-lora-fa{layers=last:K}` every replica computes the same prefix; only the blocks after it can differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.errors import PassError
from prgec.passes.dependence import downstream
from prgec.passes.infra import Pass, PassResult, Role, Tier, describe, rewrite_matches, rounding
from prgec.passes.program import TOKENS, GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import is_same_shape, is_same_size, is_tensor, shape_of
from prgec.passes.sites import is_b

aten = torch.ops.aten

# Marks the value where replicas part; extract_prefix cuts the program there.
CUT_META = "prgec_prefix_cut"
_SIZED_OPS = (aten.view.default, aten.reshape.default, aten.expand.default)


@dataclass(frozen=True)
class SharePrefix(Pass):
    """Compute what comes before the first trained layer for B rows, then repeat it.

    Attributes:
        q: Queries a step; 0 where every row is an example of its own, and the cut is all there is to do.
    """

    name: ClassVar[str] = "share-prefix"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.TRAINING
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa"})

    q: int = 1

    def requires(self, program: GraphProgram) -> Sequence[str]:
        """N rows must be 2q groups of B."""
        num_rows = _num_rows(program)
        if self.q < 0 or num_rows % self._num_copies:
            return [f"{num_rows} rows are not a multiple of 2q = {2 * self.q}"]
        return []

    def run(self, program: GraphProgram) -> PassResult:
        """Cut at the last value that alone carries the rows to the first site."""
        rewriter = Rewriter(program, self.name)
        num_rows = _num_rows(program)
        batch = num_rows // self._num_copies

        def rewrite(cut: Node) -> None:
            _narrow(program, rewriter, _prefix_of(program, cut), num_rows, batch)
            _replicate(rewriter, cut, num_rows, batch)

        return rewrite_matches(program, [match(program)], rewrite)

    @property
    def _num_copies(self) -> int:
        return max(1, 2 * self.q)


def match(program: GraphProgram) -> Node | Refusal:
    """Return the last [N, T, D] value that every path from tokens to a trained layer goes through.

    Where no linear layer comes before it, there is nothing worth sharing.
    """
    tokens = _tokens(program)
    rows = downstream([tokens])
    num_rows = _num_rows(program)
    first_site = next((node for node in program.graph.nodes if any(map(is_b, node.all_input_nodes))), None)
    order = {node: index for index, node in enumerate(program.graph.nodes)}
    last_use: dict[Node, int] = {node: max((order[user] for user in node.users), default=0) for node in rows}
    cut: Node | None = None
    open_nodes: set[Node] = set()
    for node in program.graph.nodes:
        if node is first_site or (node in rows and not _has_rows_first(node, num_rows)):
            break
        open_nodes = {each for each in open_nodes if last_use[each] > order[node]}
        if node in rows:
            open_nodes.add(node)
        if open_nodes == {node} and is_tensor(node) and is_same_shape(shape_of(node)[:-1], shape_of(tokens)):
            cut = node
    has_layer = cut is not None and any(node.target is aten.linear.default for node in _prefix_of(program, cut))
    if cut is None or not has_layer:
        return Refusal("prefix", "no block comes before the first trained layer")
    return cut


def _has_rows_first(node: Node, num_rows: int) -> bool:
    value = node.meta["val"]
    # A split gives several tensors at once.
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return all(
        isinstance(part, torch.Tensor) and part.ndim > 0 and is_same_size(part.shape[0], num_rows) for part in parts
    )


def _prefix_of(program: GraphProgram, cut: Node) -> list[Node]:
    """Row-dependent nodes up to `cut`, tokens excluded, in graph order."""
    tokens = _tokens(program)
    rows = downstream([tokens])
    nodes = list(program.graph.nodes)
    return [node for node in nodes[: nodes.index(cut) + 1] if node in rows and node.op == "call_function"]


def _narrow(program: GraphProgram, rewriter: Rewriter, prefix: list[Node], num_rows: int, batch: int) -> None:
    tokens = _tokens(program)
    with rewriter.before(prefix[0]):
        first_rows = rewriter.call(aten.slice.Tensor, tokens, 0, 0, batch)
    tables: dict[Node, Node] = {}
    for node in prefix:
        rewriter.feed(node, tokens, first_rows)
        for table in [each for each in node.all_input_nodes if _is_expanded_table(each, prefix, num_rows)]:
            if table not in tables:
                with rewriter.before(node):
                    sizes = [batch, *list(table.args[1])[1:]]  # type: ignore[arg-type]
                    tables[table] = rewriter.call(aten.expand.default, table.args[0], sizes)
            rewriter.feed(node, table, tables[table])
        if node.target in _SIZED_OPS:
            sizes = list(node.args[1])  # type: ignore[arg-type]
            if sizes and sizes[0] == num_rows:
                rewriter.set_arg(node, 1, [batch, *sizes[1:]])
                continue
        rewriter.refresh(node)
    if not is_same_size(shape_of(prefix[-1])[0], batch):
        raise PassError(
            f"share-prefix: {describe(prefix[-1])} keeps {shape_of(prefix[-1])[0]} rows; expected {batch}",
            hint="leave out share-prefix, or compile with --prefix none",
        )


def _is_expanded_table(node: Node, prefix: list[Node], num_rows: int) -> bool:
    """Whether a node is a table, the same for all rows, repeated N times."""
    return node.target is aten.expand.default and node not in prefix and is_same_size(shape_of(node)[0], num_rows)


def _replicate(rewriter: Rewriter, cut: Node, num_rows: int, batch: int) -> None:
    width = int(shape_of(cut)[-1])
    with rewriter.before(cut.next):
        single = rewriter.call(aten.view.default, cut, [1, batch, -1, width])
        copies = single
        if num_rows > batch:
            zeros = rewriter.folded(torch.zeros(num_rows // batch, 1, 1, 1))
            copies = rewriter.call(aten.add.Tensor, single, zeros)
        rows = rewriter.call(aten.view.default, copies, [num_rows, -1, width])
    rewriter.redirect_all_but(cut, rows, single)
    single.meta[CUT_META] = True


def _tokens(program: GraphProgram) -> Node:
    tokens = program.placeholder(TOKENS)
    assert tokens is not None
    return tokens


def _num_rows(program: GraphProgram) -> int:
    tokens = program.placeholder(TOKENS)
    return int(tokens.meta["val"].shape[0]) if tokens is not None else 0
