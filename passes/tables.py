"""Constants with one row a position, cut to the T of a call.

A table holds every position up to the largest T. Where T is fixed it is used as it is; where T is symbolic it
enters the graph as a slice. Equal tables are shared.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from prgec.errors import InternalError
from prgec.passes.program import TOKENS, GraphProgram
from prgec.passes.rewrite import Rewriter

aten = torch.ops.aten


class SeqTables:
    """Adds tables at the entry of one program.

    Args:
        program: Graph to add to.
        rewriter: Rewriter of the pass that asks.
    """

    def __init__(self, program: GraphProgram, rewriter: Rewriter) -> None:
        self._program = program
        self._rewriter = rewriter
        self._entry = next(node for node in program.graph.nodes if node.op == "call_function")
        self._cuts: list[tuple[torch.Tensor, list[int], Node]] = []
        self._length: Node | None = None
        self._is_dynamic = not isinstance(self._tokens().meta["val"].shape[1], int)

    def cut(self, table: torch.Tensor, dims: list[int]) -> Node:
        """Return `table` with its `dims`, each as long as the largest T, cut to T."""
        for known, known_dims, cut in self._cuts:
            if known.dtype == table.dtype and known_dims == dims and torch.equal(known, table):
                return cut
        length = self.length() if self._is_dynamic and dims else None
        with self._rewriter.before(self._entry):
            if length is None:
                cut = self._rewriter.folded(table.contiguous().clone())
            else:
                cut = self._rewriter.folded(_with_spare_row(table, dims))
                for d in dims:
                    cut = self._rewriter.call(aten.slice.Tensor, cut, d, 0, length)
        self._cuts.append((table, dims, cut))
        return cut

    def length(self) -> Node:
        """T as a node; only where T is symbolic."""
        if self._length is None:
            found = next(filter(is_seq_len, self._program.graph.nodes), None)
            if found is None:
                with self._rewriter.before(self._entry):
                    found = self._rewriter.call(aten.sym_size.int, self._tokens(), 1)
            elif found is self._entry:
                self._entry = found.next
            else:
                # It reads an input only, so it can move up to where the tables go.
                self._rewriter.move_before(found, self._entry)
            self._length = found
        return self._length

    def _tokens(self) -> Node:
        tokens = self._program.placeholder(TOKENS)
        if tokens is None:
            raise InternalError("the graph has no tokens input")
        return tokens


def is_seq_len(node: Node) -> bool:
    """Whether a node is T, read off the tokens."""
    if node.op != "call_function" or node.target is not aten.sym_size.int:
        return False
    source = node.args[0]
    return isinstance(source, Node) and source.op == "placeholder" and source.target == TOKENS


def _with_spare_row(table: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """Repeat the last row once; it is never read.

    A table of exactly the largest T would make "cut to T" and "take all" differ by T == max only, and the tracer
    guards on that.
    """
    for d in dims:
        table = torch.cat([table, table.narrow(d, table.shape[d] - 1, 1)], d)
    return table.contiguous().clone()
