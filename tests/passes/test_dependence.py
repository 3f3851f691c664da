"""Dependence on rows and on state, where sizes of rows are read too."""

from __future__ import annotations

import operator

import torch

from prgec.passes.dependence import downstream, smoothly_downstream, updates_of, upstream
from tests.passes.builder import GraphBuilder

aten = torch.ops.aten


def test_values_carry_a_dependence_and_sizes_do_not() -> None:
    b = GraphBuilder(dynamic=True)
    hidden = b.hidden(4)
    table = b.call(aten.slice.Tensor, b.weight("table", 9, 4), 0, 0, b.length())
    total = b.call(aten.add.Tensor, hidden, table)
    b.done(total)
    assert upstream([table]) == {table, b.program.graph.find_nodes(op="get_attr")[1]}
    assert downstream([b.tokens]) - {b.program.graph.output_node()} == {b.tokens, hidden, total}
    assert b.tokens in upstream([total]) and table in upstream([total])


def test_a_node_on_the_way_is_reached_once_from_either_side() -> None:
    b = GraphBuilder()
    first = b.call(aten.neg.default, b.hidden(4))
    second = b.call(aten.add.Tensor, first, first)
    b.done(second)
    assert upstream([first]) & downstream([first]) == {first}


def test_whole_numbers_end_a_smooth_dependence() -> None:
    """The values that are largest change by little; which they are does not."""
    b = GraphBuilder()
    hidden = b.hidden(4)
    largest = b.call(aten.topk.default, hidden, 2)
    values, chosen = (b.call(operator.getitem, largest, index) for index in range(2))
    again = b.call(aten.to.dtype, chosen, torch.float32)
    b.done(values, again)
    found = smoothly_downstream([hidden])
    assert {hidden, largest, values} <= found and not {chosen, again} & found
    assert again in downstream([hidden])


def test_updates_depend_on_state_and_on_no_row() -> None:
    b = GraphBuilder()
    lr, state = b.input("lr", torch.zeros(())), b.weight("state", 4)
    rate = b.call(aten.mul.Tensor, lr, 0.5)
    change = b.call(aten.mul.Tensor, state, rate)
    activation = b.call(aten.mul.Tensor, b.hidden(4), change)
    constant = b.call(aten.neg.default, b.weight("frozen", 4))
    b.done(activation, constant)
    assert updates_of([state, lr], rows=[b.tokens]) == {lr, state, rate, change}
