from __future__ import annotations

import pytest
import torch

from prgec.errors import PassError
from prgec.passes.program import GraphProgram
from prgec.passes.select_label_tokens import SelectLabelTokens
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript

aten = torch.ops.aten
PASS = SelectLabelTokens()


def example() -> GraphProgram:
    """Soft-capped logits: the cap moves after the gather together with the head."""
    b = GraphBuilder(dynamic=True)
    logits = b.call(aten.linear.default, b.hidden(), b.weight("lm_head.weight", 6, 4), b.weight("lm_head.bias", 6))
    capped = b.call(aten.mul.Tensor, b.call(aten.tanh.default, b.call(aten.div.Tensor, logits, 3.0)), 3.0)
    return b.done(b.call(aten.gather.default, capped, 1, b.label_index(6)))


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 6] = aten.linear(%0, @lm_head.weight, @lm_head.bias)
  %2: f32[4, T, 6] = aten.div(%1, 3.0)
  %3: f32[4, T, 6] = aten.tanh(%2)
  %4: f32[4, T, 6] = aten.mul(%3, 3.0)
  %5: i64[4, 2, 1] = aten.unsqueeze(label_pos, -1)
  %6: i64[4, 2, 6] = aten.expand(%5, [-1, -1, 6])
  %7: f32[4, 2, 6] = aten.gather(%4, 1, %6)
  return %7
--- select-label-tokens: 1 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: i64[4, 2, 1] = aten.unsqueeze(label_pos, -1)
  %2: i64[4, 2, 4] = aten.expand(%1, [-1, -1, 4])
  %3: f32[4, 2, 4] = aten.gather(%0, 1, %2)
  %4: f32[4, 2, 6] = aten.linear(%3, @lm_head.weight, @lm_head.bias)
  %5: f32[4, 2, 6] = aten.div(%4, 3.0)
  %6: f32[4, 2, 6] = aten.tanh(%5)
  %7: f32[4, 2, 6] = aten.mul(%6, 3.0)
  return %7
""",
    )


def test_miss_logits_with_other_readers() -> None:
    b = GraphBuilder()
    logits = b.call(aten.linear.default, b.hidden(), b.weight("lm_head.weight", 6, 4))
    program = b.done(b.call(aten.gather.default, logits, 1, b.label_index(6)), logits)
    expect(
        transcript(program, PASS),
        """\
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, 8, 6] = aten.linear(%0, @lm_head.weight)
  %2: i64[4, 2, 1] = aten.unsqueeze(label_pos, -1)
  %3: i64[4, 2, 6] = aten.expand(%2, [-1, -1, 6])
  %4: f32[4, 2, 6] = aten.gather(%1, 1, %3)
  return %4, %1
--- select-label-tokens: 0 hits
refused %gather_default aten.gather.default: the logits have other readers
(same)
""",
    )


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        ("relu", "is fed by %relu_default aten.relu.default, not by a linear"),
        ("shared", "%tanh_default aten.tanh.default has other readers"),
        ("by_position", "%mul_tensor aten.mul.Tensor may treat positions differently"),
        ("narrow", "its index is not one position a label, expanded over V"),
        ("other_axis", "its index is not one position a label, expanded over V"),
        ("by_value", "its index is not one position a label, expanded over V"),
    ],
)
def test_miss(between: str, reason: str) -> None:
    b = GraphBuilder()
    vocab = 2 if between == "other_axis" else 6
    logits = b.call(aten.linear.default, b.hidden(), b.weight("lm_head.weight", vocab, 4))
    index, extra = b.label_index(vocab), ()
    if between == "relu":
        logits = b.call(aten.relu.default, logits)
    elif between == "shared":
        logits = b.call(aten.tanh.default, logits)
        extra = (logits,)
    elif between == "by_position":
        logits = b.call(aten.mul.Tensor, logits, b.weight("slope", 8, 1))
    elif between == "narrow":
        index = b.label_index(5)
    elif between == "other_axis":
        index = b.call(aten.expand.default, b.call(aten.unsqueeze.default, b.label_pos, 1), [-1, 6, -1])
    elif between == "by_value":
        index = b.call(aten.add.Tensor, index, 1)
    result = run_pass(b.done(b.call(aten.gather.default, logits, 1, index), *extra), PASS)
    assert not result.changed
    assert [r.reason for r in result.refusals] == [reason]


def test_miss_gather_along_the_vocabulary() -> None:
    b = GraphBuilder()
    logits = b.call(aten.linear.default, b.hidden(), b.weight("lm_head.weight", 6, 4))
    index = b.call(aten.unsqueeze.default, b.tokens, -1)
    result = run_pass(b.done(b.call(aten.gather.default, logits, 2, index)), PASS)
    assert (result.changed, result.refusals) == (False, ())


def test_failure_names_the_invalid_node() -> None:
    b = GraphBuilder()
    state = b.weight("state", 4)
    b.call(aten.add_.Tensor, state, state)
    with pytest.raises(PassError) as error:
        PASS(b.done(b.hidden()))
    assert str(error.value) == (
        "select-label-tokens: produced an invalid graph: "
        "%add__tensor writes state with aten.add_.Tensor; expected copy_ or a prge op"
    )
