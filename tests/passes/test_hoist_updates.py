from __future__ import annotations

import pytest
import torch

from prgec.errors import PassError
from prgec.passes.hoist_updates import HoistUpdates
from prgec.passes.insert_self_update import InsertSelfUpdate
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import assert_close, run, set_state, state_of

aten = torch.ops.aten
PASS = HoistUpdates()


def example(*, state: str = "seeded") -> GraphProgram:
    """Two layers in a row: the second site's update comes after the first layer."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    first = b.dualized_site(b.hidden(), "first", q=1, rank=1, out=3)
    program = b.done(b.dualized_site(first, "second", q=1, rank=1, out=2))
    run_pass(program, InsertSelfUpdate(state=state))
    return program


def test_hit() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    rate = b.input("lr", torch.zeros(()))
    hidden = b.hidden()
    master = b.weight("site.lora_B", 4)
    updated = b.call(aten.sub.Tensor, master, rate)
    b.call(aten.copy_.default, master, updated)
    expect(
        transcript(b.done(b.call(aten.add.Tensor, hidden, updated)), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2], lr: f32[]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4] = aten.sub(@site.lora_B, lr)
  %2: f32[4] = aten.copy_(@site.lora_B, %1)
  %3: f32[2, T, 4] = aten.add(%0, %1)
  return %3
--- hoist-updates: 1 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2], lr: f32[]):
  %0: f32[4] = aten.sub(@site.lora_B, lr)
  %1: f32[4] = aten.copy_(@site.lora_B, %0)
  %2: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %3: f32[2, T, 4] = aten.add(%2, %0)
  return %3
""",
    )


@pytest.mark.parametrize("state", ["seeded", "dual"])
def test_hit_every_update_of_a_real_step(state: str) -> None:
    program = example(state=state)
    run_pass(program, PASS)
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    forward = calls.index("aten.embedding.default")
    assert calls[:forward].count("aten.copy_.default") == (2 if state == "seeded" else 3)
    assert not [name for name in calls[forward:] if name.startswith("prge.") or "copy_" in name]


def test_miss_values_that_read_no_state() -> None:
    """A constant chain is not an update; folding it is another pass's business."""
    b = GraphBuilder(num_rows=2)
    hidden = b.hidden()
    chain = b.call(aten.neg.default, b.weight("slope", 4))
    expect(
        transcript(b.done(b.call(aten.mul.Tensor, hidden, chain)), PASS),
        """\
graph(tokens: i64[2, 8], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4] = aten.neg(@slope)
  %2: f32[2, 8, 4] = aten.mul(%0, %1)
  return %2
--- hoist-updates: 0 hits
(same)
""",
    )


def test_failure_update_that_depends_on_rows() -> None:
    b = GraphBuilder()
    hidden = b.hidden()
    state = b.weight("cache", 4, 8, 4)
    b.call(aten.copy_.default, state, hidden)
    with pytest.raises(PassError) as error:
        PASS(b.done(hidden))
    assert str(error.value) == "hoist-updates: broke a promise: %copy__default was not moved"


@pytest.mark.parametrize("state", ["seeded", "dual"])
def test_parity(state: str) -> None:
    """Outputs and state over three steps, bit for bit."""
    before, after = example(state=state), example(state=state)
    run_pass(after, PASS)
    set_state(after, state_of(before))
    for step in range(3):
        inputs = (*row_inputs(before, seed=step)[:-1], torch.tensor(step))
        assert_close(run(after, inputs), run(before, inputs), PASS.tier)
        assert_close(tuple(state_of(after).values()), tuple(state_of(before).values()), PASS.tier)
