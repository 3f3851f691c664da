from __future__ import annotations

import pytest
import torch

from prgec.passes.program import GraphProgram
from prgec.passes.select_to_slice import SelectToSlice
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript

aten = torch.ops.aten
PASS = SelectToSlice()


def example(*, dynamic: bool = True) -> GraphProgram:
    """Two of three vectors side by side, one of them counted from the end."""
    b = GraphBuilder(num_rows=2, dynamic=dynamic)
    split = b.call(aten.view.default, b.hidden(12), [2, -1, 3, 4])
    return b.done(*[b.call(aten.select.int, split, dim, index) for dim, index in ((2, 1), (-2, -1))])


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 12] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 3, 4] = aten.view(%0, [2, -1, 3, 4])
  %2: f32[2, T, 4] = aten.select.int(%1, 2, 1)
  %3: f32[2, T, 4] = aten.select.int(%1, -2, -1)
  return %2, %3
--- select-to-slice: 2 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 12] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 3, 4] = aten.view(%0, [2, -1, 3, 4])
  %2: f32[2, T, 12] = aten.reshape(%1, [2, -1, 12])
  %3: f32[2, T, 4] = aten.slice(%2, 2, 4, 8)
  %4: f32[2, T, 12] = aten.reshape(%1, [2, -1, 12])
  %5: f32[2, T, 4] = aten.slice(%4, 2, 8, 12)
  return %3, %5
""",
    )


def test_hit_fixed_t() -> None:
    assert run_pass(example(dynamic=False), PASS).hits == 2


@pytest.mark.parametrize("spoil", ["table", "last", "rows", "matrix", "whole numbers", "over T"])
def test_miss(spoil: str) -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    split = b.call(aten.view.default, b.hidden(12), [2, -1, 3, 4])
    source, dim = {
        "table": (b.weight("table", 5, 3, 4), 1),
        "last": (split, 3),
        "rows": (split, 0),
        "matrix": (b.weight("matrix", 3, 4), 0),
        "whole numbers": (b.call(aten.expand.default, b.call(aten.unsqueeze.default, b.label_pos, 2), [2, 2, 4]), 1),
        "over T": (b.call(aten.transpose.int, split, 1, 3), 2),
    }[spoil]
    assert not run_pass(b.done(b.call(aten.select.int, source, dim, 0)), PASS).changed
