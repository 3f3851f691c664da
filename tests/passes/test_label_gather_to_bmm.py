from __future__ import annotations

import pytest
import torch

from prgec.errors import PassError
from prgec.passes.label_gather_to_bmm import LabelGatherToBmm
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import assert_parity

aten = torch.ops.aten
PASS = LabelGatherToBmm()


def example(*, dynamic: bool = True) -> GraphProgram:
    b = GraphBuilder(dynamic=dynamic)
    return b.done(b.call(aten.gather.default, b.hidden(), 1, b.label_index(4)))


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: i64[4, 2, 1] = aten.unsqueeze(label_pos, -1)
  %2: i64[4, 2, 4] = aten.expand(%1, [-1, -1, 4])
  %3: f32[4, 2, 4] = aten.gather(%0, 1, %2)
  return %3
--- label-gather-to-bmm: 1 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: size = aten.sym_size.int(tokens, 1)
  %1: i64[T] = aten.slice(@folded.c0, 0, 0, %0)
  %2: i64[4, 2, 1] = aten.unsqueeze(label_pos, -1)
  %3: bool[4, 2, T] = aten.eq(%2, %1)
  %4: f32[4, 2, T] = aten.to.dtype(%3, f32)
  %5: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %6: f32[4, 2, 4] = aten.bmm(%4, %5)
  return %6
""",
    )


@pytest.mark.parametrize("spoil", ["computed", "along_width", "integers", "other_axis"])
def test_miss(spoil: str) -> None:
    b = GraphBuilder(dynamic=True)
    source, dim, index = b.hidden(), 1, b.label_index(4)
    if spoil == "computed":
        positions = b.call(aten.add.Tensor, b.label_pos, 1)
        index = b.call(aten.expand.default, b.call(aten.unsqueeze.default, positions, -1), [-1, -1, 4])
    elif spoil == "along_width":
        dim = 2
    elif spoil == "integers":
        source = b.call(aten.to.dtype, source, torch.int64)
    elif spoil == "other_axis":
        index = b.call(aten.expand.default, b.call(aten.unsqueeze.default, b.label_pos, 1), [-1, 3, -1])
    assert not run_pass(b.done(b.call(aten.gather.default, source, dim, index)), PASS).changed


def test_failure_without_tokens() -> None:
    b = GraphBuilder()
    hidden = b.weight("h", 4, 8, 4)
    program = b.done(b.call(aten.gather.default, hidden, 1, b.label_index(4)))
    program.graph.erase_node(program.placeholders()[0])
    with pytest.raises(PassError) as error:
        PASS(program)
    assert str(error.value) == (
        "label-gather-to-bmm: failed: the graph has no tokens input. "
        "Hint: please report this, with the model's config.json"
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_parity(dynamic: bool) -> None:
    assert_parity(example(dynamic=dynamic), PASS)
