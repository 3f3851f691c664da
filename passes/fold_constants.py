"""Compute once what no input row can change: RoPE tables, causal masks, positions.

Before:
    %0: size = aten.sym_size.int(tokens, 1)
    %1: i64[T] = aten.arange(%0)
    %2: f32[T, 8] = ...(%1, @model.rotary_emb.inv_freq)
    %3: f32[T, 8] = aten.cos(%2)
After:
    %0: size = aten.sym_size.int(tokens, 1)
    %1: f32[T, 8] = aten.slice(@folded.c0, 0, 0, %0)

A value that depends on T but on no row is evaluated at the largest T. It may be a slice of that table at every
smaller T only if row t of it never depends on T, and that is checked by evaluating it at other lengths.

Requires: nothing. Ensures: nothing (what cannot be folded is reported).
Numerics: EXACT (the same ops ran, earlier).
Why: index arithmetic in int64 breaks delegates, and runs again at every step for the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier, describe, rewrite_matches
from prgec.passes.program import TOKENS, GraphProgram, is_mutation
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import dynamic_dims, is_same_shape, is_tensor, shape_of
from prgec.passes.sites import site_of
from prgec.passes.tables import SeqTables, is_seq_len

aten = torch.ops.aten
_BROADCASTING = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})
_RANDOM_TAGS = frozenset({torch.Tag.nondeterministic_seeded})


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Evaluate row-independent values at compile time.

    Attributes:
        max_elements: Largest constant to create; bounds what a T x T mask may cost in the file.
    """

    name: ClassVar[str] = "fold-constants"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"canonicalize"})

    max_elements: int = 1 << 26

    def run(self, program: GraphProgram) -> PassResult:
        """Fold the largest row-independent values."""
        evaluator = _Evaluator(program)
        rewriter = Rewriter(program, self.name)
        found = (self.match(node, evaluator) for node in evaluator.frontier())
        return rewrite_matches(program, found, partial(_replace, rewriter, SeqTables(program, rewriter)))

    def match(self, node: Node, evaluator: _Evaluator) -> Constant | Refusal:
        """Return the table that gives a row-independent value, or why it is computed at every step."""
        where, dims = describe(node), dynamic_dims(node)
        symbol = evaluator.symbol
        if any(shape_of(node)[d].node.expr != symbol for d in dims):  # type: ignore[union-attr]
            return Refusal(where, "its size is not T itself")
        longest = evaluator.max_seq_len
        table = evaluator.value(node, longest)
        if table.numel() > self.max_elements:
            return Refusal(where, f"{table.numel()} elements are more than max-elements={self.max_elements}")
        for length in sorted({2, longest // 2 + 1, longest - 1} - {1, longest}):
            expected = evaluator.value(node, length)
            if not torch.equal(_cut(table, dims, length), expected):
                return Refusal(where, f"row t depends on T itself (checked at T = {length})")
        return Constant(node, table)


@dataclass(frozen=True)
class Constant:
    """A row-independent value, with its table at the largest T."""

    node: Node
    table: torch.Tensor


class _Evaluator:
    """Values of row-independent nodes at a given T."""

    def __init__(self, program: GraphProgram) -> None:
        self.program = program
        self.max_seq_len = program.max_seq_len()
        tokens = program.placeholder(TOKENS)
        size = tokens.meta["val"].shape[1] if tokens is not None else 0
        self.symbol = None if isinstance(size, int) else size.node.expr
        self.state = set(program.state_names())
        self.constant = self._constant_nodes()
        self._memo: dict[int, dict[Node, Any]] = {}

    def frontier(self) -> list[Node]:
        """Row-independent computed tensors that something row-dependent reads."""
        return [
            node
            for node in self.program.graph.nodes
            if node in self.constant
            and node.op == "call_function"
            and is_tensor(node)
            and not _is_table_slice(node)
            and any(user not in self.constant for user in node.users)
        ]

    def value(self, node: Node, length: int) -> Any:
        """The value of `node` when T is `length`."""
        memo = self._memo.setdefault(length, {})
        if node not in memo:
            memo[node] = self._compute(node, length)
        return memo[node]

    def _compute(self, node: Node, length: int) -> Any:
        if node.op == "get_attr":
            return self.program.attribute(node)
        if is_seq_len(node):
            return length
        args = map_arg(node.args, lambda n: self.value(n, length))
        kwargs = map_arg(node.kwargs, lambda n: self.value(n, length))
        with torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]

    def _constant_nodes(self) -> set[Node]:
        constant: set[Node] = set()
        for node in self.program.graph.nodes:
            if node.op == "get_attr":
                if str(node.target) not in self.state and not site_of(node):
                    constant.add(node)
            elif is_seq_len(node) or (node.op == "call_function" and _is_foldable(node, constant)):
                constant.add(node)
        return constant


def _is_foldable(node: Node, constant: set[Node]) -> bool:
    if is_mutation(node) or not all(source in constant for source in node.all_input_nodes):
        return False
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace == "aten" and not _RANDOM_TAGS.intersection(target.tags)
    return True


def _is_table_slice(node: Node) -> bool:
    """Whether a node is already what folding produces: a constant, cut to T or expanded."""
    while node.op == "call_function" and node.target in (aten.slice.Tensor, aten.expand.default):
        source = node.args[0]
        if not isinstance(source, Node):
            return False
        node = source
    return node.op == "get_attr"


def _cut(table: torch.Tensor, dims: list[int], length: int) -> torch.Tensor:
    for d in dims:
        table = table.narrow(d, 0, length)
    return table


def _replace(rewriter: Rewriter, tables: SeqTables, constant: Constant) -> None:
    """Replace a node by its table, cut to T, and expanded to the node's shape where a reader needs that."""
    node, table = constant.node, constant.table
    dims, shape = dynamic_dims(node), shape_of(node)
    compact = _without_repeats(table, dims)
    broadcasts = all(_broadcasts(user, node) for user in node.users)
    if not broadcasts and not dims and all(user.target in _BROADCASTING for user in node.users):
        # It repeats the other operand. Whole, it does so in a delegate, none of which expands.
        compact = table
    new = tables.cut(compact, dims)
    if compact.shape != table.shape and not broadcasts:
        sizes = [size if isinstance(size, int) else -1 for size in shape]
        with rewriter.before(node):
            new = rewriter.call(aten.expand.default, new, sizes)
    rewriter.replace(node, new)


def _broadcasts(user: Node, node: Node) -> bool:
    """Whether a reader's result keeps its shape when `node` is one slice where it was many equal ones."""
    others = [source for source in user.all_input_nodes if source is not node]
    return user.target in _BROADCASTING and any(is_same_shape(shape_of(each), shape_of(user)) for each in others)


def _without_repeats(table: torch.Tensor, dynamic: list[int]) -> torch.Tensor:
    """Keep one slice of every fixed dimension along which all slices are equal."""
    for d in range(table.dim()):
        if d not in dynamic and table.shape[d] > 1 and torch.equal(table, table.narrow(d, 0, 1).expand_as(table)):
            table = table.narrow(d, 0, 1)
    return table
