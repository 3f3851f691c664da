"""Tables of one row a position: cut to T where T varies, shared where equal."""

from __future__ import annotations

import pytest
import torch

from prgec.errors import InternalError
from prgec.passes.printer import print_program
from prgec.passes.rewrite import Rewriter
from prgec.passes.tables import SeqTables
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect

aten = torch.ops.aten
TABLE = torch.arange(8.0)


def _tables(b: GraphBuilder) -> SeqTables:
    return SeqTables(b.program, Rewriter(b.program, "test"))


def test_symbolic_t_cuts_every_dimension() -> None:
    b = GraphBuilder(dynamic=True)
    hidden = b.hidden()
    cut = _tables(b).cut(TABLE[:, None] - TABLE, [0, 1])
    program = b.done(hidden, cut)
    expect(
        print_program(program),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: size = aten.sym_size.int(tokens, 1)
  %1: f32[T, 9] = aten.slice(@folded.c0, 0, 0, %0)
  %2: f32[T, T] = aten.slice(%1, 1, 0, %0)
  %3: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  return %3, %2
""",
    )
    for length in (2, 7, 8):
        found = program.module(torch.zeros(4, length, dtype=torch.int64), None, None)[1]
        assert torch.equal(found, (TABLE[:, None] - TABLE)[:length, :length])


def test_fixed_t_takes_the_table_as_it_is() -> None:
    b = GraphBuilder()
    hidden = b.hidden()
    program = b.done(hidden, _tables(b).cut(TABLE, [0]))
    expect(
        print_program(program),
        """\
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, 8, 4] = aten.embedding(@embed.weight, tokens)
  return %0, @folded.c0
""",
    )
    assert torch.equal(program.module.get_buffer("folded.c0"), TABLE)


def test_a_table_without_positions_is_not_cut() -> None:
    b = GraphBuilder(dynamic=True)
    hidden = b.hidden()
    assert "slice" not in print_program(b.done(hidden, _tables(b).cut(TABLE, [])))


def test_equal_tables_are_shared_and_others_are_not() -> None:
    b = GraphBuilder(dynamic=True)
    b.hidden()
    tables = _tables(b)
    first = tables.cut(TABLE, [0])
    assert tables.cut(TABLE.clone(), [0]) is first
    assert tables.cut(TABLE, []) is not first
    assert tables.cut(TABLE.to(torch.int64), [0]) is not first
    assert tables.cut(TABLE + 1, [0]) is not first


@pytest.mark.parametrize("is_first", [False, True])
def test_t_is_read_once_at_the_entry(is_first: bool) -> None:
    """A size read later in the graph moves up to where the tables need it."""
    b = GraphBuilder(dynamic=True)
    length = b.length() if is_first else None
    hidden = b.hidden()
    length = length or b.length()
    program = b.done(_tables(b).cut(TABLE, [0]), b.call(aten.narrow.default, hidden, 1, 0, length))
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert calls == ["aten.sym_size.int", "aten.slice.Tensor", "aten.embedding.default", "aten.narrow.default"]


def test_tokens_are_needed() -> None:
    b = GraphBuilder()
    b.weight("w", 4)
    program = b.done(b.call(aten.neg.default, b.label_pos))
    program.graph.erase_node(b.tokens)
    with pytest.raises(InternalError, match="^the graph has no tokens input$"):
        _tables(b)
