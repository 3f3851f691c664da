"""The text of a graph says what it computes and nothing about where it was made."""

from __future__ import annotations

import operator

import torch

from prgec.passes.printer import op_counts, print_program
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect

aten = torch.ops.aten


def test_every_form_of_value_and_argument() -> None:
    b = GraphBuilder(dynamic=True)
    length = b.length()
    hidden = b.hidden()
    half = b.call(aten.to.dtype, hidden, torch.float16)
    doubled = b.call(aten.cat.default, [half, half], 1)
    tail = b.call(aten.slice.Tensor, doubled, 1, 1, 9223372036854775807)
    mask = b.call(aten.ne.Scalar, b.tokens, 0)
    split = b.call(aten.split.Tensor, hidden, 2, -1)
    first = b.call(operator.getitem, split, 0)
    more = b.call(
        aten.full.default, [length, 2], 1.5, dtype=torch.float32, device=torch.device("cpu"), pin_memory=False
    )
    expect(
        print_program(b.done(tail, mask, first, more)),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: size = aten.sym_size.int(tokens, 1)
  %1: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %2: f16[4, T, 4] = aten.to.dtype(%1, f16)
  %3: f16[4, 2*T, 4] = aten.cat([%2, %2], 1)
  %4: f16[4, 2*T-1, 4] = aten.slice(%3, 1, 1, end)
  %5: bool[4, T] = aten.ne.Scalar(tokens, 0)
  %6: (f32[4, T, 2], f32[4, T, 2]) = aten.split(%1, 2, -1)
  %7: f32[4, T, 2] = getitem(%6, 0)
  %8: f32[T, 2] = aten.full([%0, 2], 1.5, dtype=f32)
  return %4, %5, %7, %8
""",
    )


def test_names_of_nodes_do_not_show() -> None:
    def build(name: str, extra: bool) -> str:
        b = GraphBuilder()
        hidden = b.hidden()
        hidden.name = name
        if extra:
            b.call(aten.neg.default, hidden)
        node = b.call(aten.abs.default, hidden)
        node.meta["stack_trace"] = f'  File "/home/{name}/model.py", line 3, in forward'
        return print_program(b.done(node))

    assert build("a", extra=False) == build("some_other_name", extra=True)


def test_only_t_is_called_t() -> None:
    """Any symbol of the tracer, and sums with it."""
    b = GraphBuilder(dynamic=True)
    longer = b.call(aten.cat.default, [b.tokens, b.label_pos], 1)
    assert "i64[4, T+2]" in print_program(b.done(longer))


def test_no_output_leaves_no_blank() -> None:
    assert print_program(GraphBuilder().done()).endswith("\n  return\n")


def test_op_counts_tell_overloads_apart() -> None:
    b = GraphBuilder(dynamic=True)
    hidden = b.hidden()
    b.call(aten.copy_.default, b.weight("state", 4), b.weight("w", 4))
    program = b.done(b.call(aten.add.Tensor, hidden, hidden), b.call(aten.add.Scalar, hidden, 1), b.length())
    assert op_counts(program) == {
        "aten.embedding": 1,
        "aten.copy_": 1,
        "aten.add": 1,
        "aten.add.Scalar": 1,
        "aten.sym_size.int": 1,
    }
