from __future__ import annotations

import pytest
import torch
from torch.fx import Node

from prgec.errors import PassError
from prgec.passes.emit_activations import EmitActivations
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder, row_inputs, seq_lens
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import run

aten = torch.ops.aten
PASS = EmitActivations()


def example() -> GraphProgram:
    """Two blocks, one after the other, a norm after both, and the loss of a language model."""
    return _model()


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 4] = aten.linear(%0, @model.layers.0.mlp.weight)
  %2: f32[4, T, 4] = aten.relu(%1)
  %3: f32[4, T, 4] = aten.add(%2, %1)
  %4: f32[4, T, 4] = aten.linear(%3, @model.layers.1.mlp.weight)
  %5: f32[4, T, 4] = aten.relu(%4)
  %6: f32[4, T, 4] = aten.add(%5, %4)
  %7: f32[4, T, 4] = aten.mul(%6, 2.0)
  %8: i64[4, 2, 1] = aten.unsqueeze(label_pos, -1)
  %9: i64[4, 2, 4] = aten.expand(%8, [-1, -1, 4])
  %10: f32[4, 2, 4] = aten.gather(%7, 1, %9)
  %11: f32[4, 2, 6] = aten.linear(%10, @lm_head.weight)
  %12: i64[4, 2, 1] = aten.unsqueeze(targets, -1)
  %13: f32[4, 2, 6] = aten.log_softmax.int(%11, -1)
  %14: f32[4, 2, 1] = aten.gather(%13, 2, %12)
  %15: f32[4] = aten.sum.dim_IntList(%14, [1, 2])
  return %15
--- emit-activations: 2 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: i64[4, 2, 1] = aten.unsqueeze(label_pos, -1)
  %1: i64[4, 2, 4] = aten.expand(%0, [-1, -1, 4])
  %2: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %3: f32[4, T, 4] = aten.linear(%2, @model.layers.0.mlp.weight)
  %4: f32[4, T, 4] = aten.relu(%3)
  %5: f32[4, T, 4] = aten.add(%4, %3)
  %6: f32[4, 2, 4] = aten.gather(%5, 1, %1)
  %7: f32[4, T, 4] = aten.linear(%5, @model.layers.1.mlp.weight)
  %8: f32[4, T, 4] = aten.relu(%7)
  %9: f32[4, T, 4] = aten.add(%8, %7)
  %10: f32[4, 2, 4] = aten.gather(%9, 1, %1)
  %11: f32[4, T, 4] = aten.mul(%9, 2.0)
  %12: i64[4, 2, 1] = aten.unsqueeze(label_pos, -1)
  %13: i64[4, 2, 4] = aten.expand(%12, [-1, -1, 4])
  %14: f32[4, 2, 4] = aten.gather(%11, 1, %13)
  %15: f32[4, 2, 6] = aten.linear(%14, @lm_head.weight)
  %16: i64[4, 2, 1] = aten.unsqueeze(targets, -1)
  %17: f32[4, 2, 6] = aten.log_softmax.int(%15, -1)
  %18: f32[4, 2, 1] = aten.gather(%17, 2, %16)
  %19: f32[4] = aten.sum.dim_IntList(%18, [1, 2])
  %20: f32[4, 4, 4] = aten.cat([%6, %10], 1)
  %21: f32[4, 2, 2, 4] = aten.view(%20, [4, 2, 2, 4])
  return %19, %21, %15
""",
    )


def _in_module(node: Node, path: str) -> Node:
    """Say that a call was traced in the module at `path`."""
    node.meta["nn_module_stack"] = {"": ("", "Model"), path: (path, "Block")}
    return node


def _model(
    paths: tuple[str, ...] = ("model.layers.0", "model.layers.1"), widths: tuple[int, ...] = (4, 4)
) -> GraphProgram:
    b = GraphBuilder(dynamic=True)
    hidden = b.hidden()
    for path, width in zip(paths, widths, strict=True):
        inner = _in_module(
            b.call(aten.linear.default, hidden, b.weight(f"{path}.mlp.weight", width, hidden.meta["val"].shape[-1])),
            f"{path}.mlp",
        )
        # Inner values of a block are not its output.
        middle = _in_module(b.call(aten.relu.default, inner), path)
        hidden = _in_module(b.call(aten.add.Tensor, middle, inner), path)
    normed = _in_module(b.call(aten.mul.Tensor, hidden, 2.0), "model.norm")
    rows = b.call(aten.gather.default, normed, 1, b.label_index(widths[-1]))
    logits = b.call(aten.linear.default, rows, b.weight("lm_head.weight", 6, widths[-1]))
    targets = b.call(aten.unsqueeze.default, b.targets, -1)
    losses = b.call(aten.gather.default, b.call(aten.log_softmax.int, logits, -1), 2, targets)
    return b.done(b.call(aten.sum.dim_IntList, losses, [1, 2]))


def test_parity_of_the_loss_and_what_is_emitted() -> None:
    """The loss keeps its bits; activations and logits are those computed by hand from the weights."""
    before, after = example(), example()
    run_pass(after, PASS)
    named = dict(after.module.named_buffers())
    for length in seq_lens(after):
        tokens, label_pos, targets = row_inputs(after, seq_len=length)
        (losses,), (same, acts, logits) = (
            run(before, (tokens, label_pos, targets)),
            run(after, (tokens, label_pos, targets)),
        )
        assert torch.equal(losses, same)
        hidden = named["embed.weight"][tokens]
        expected = []
        for path in ("model.layers.0", "model.layers.1"):
            inner = hidden @ named[f"{path}.mlp.weight"].T
            hidden = inner + inner.clamp(min=0)
            expected.append(torch.stack([row[at] for row, at in zip(hidden, label_pos, strict=True)]))
        torch.testing.assert_close(acts, torch.stack(expected, 1))
        torch.testing.assert_close(logits, 2 * expected[-1] @ named["lm_head.weight"].T)


def test_one_block_is_not_joined_with_anything() -> None:
    program = _model(("h.0",), (4,))
    assert run_pass(program, PASS).hits == 1
    assert not list(program.calls(aten.cat.default))


def test_many_blocks_are_joined_in_steps_and_in_order() -> None:
    """XNNPACK joins four at once; 18 blocks take three rounds."""
    program = _model(tuple(f"h.{number}" for number in range(18)), (4,) * 18)
    assert run_pass(program, PASS).hits == 18
    assert max(len(node.args[0]) for node in program.calls(aten.cat.default)) <= 4
    tokens, label_pos, targets = row_inputs(program, seq_len=5)
    _, acts, _ = run(program, (tokens, label_pos, targets))
    named = dict(program.module.named_buffers())
    hidden = named["embed.weight"][tokens]
    for number in range(18):
        inner = hidden @ named[f"h.{number}.mlp.weight"].T
        hidden = inner + inner.clamp(min=0)
        expected = torch.stack([row[at] for row, at in zip(hidden, label_pos, strict=True)])
        torch.testing.assert_close(acts[:, number], expected)


def test_numbered_modules_inside_a_block_are_not_blocks() -> None:
    program = _model(("h.0.experts.0", "h.0", "h.1"), (4, 4, 4))
    assert run_pass(program, PASS).hits == 2


@pytest.mark.parametrize(
    ("paths", "widths", "reason"),
    [
        (("embed", "model.norm"), (4, 4), "no module path ends in the number of a block"),
        (("h.0", "h.2"), (4, 4), "its blocks [0, 2] are not 0 to 1, or differ in width"),
        (("h.0", "h.1"), (4, 3), "its blocks [0, 1] are not 0 to 1, or differ in width"),
    ],
)
def test_miss(paths: tuple[str, ...], widths: tuple[int, ...], reason: str) -> None:
    program = _model(paths, widths)
    result = run_pass(program, PASS)
    assert not result.changed
    assert [refusal.reason for refusal in result.refusals] == [reason]


def test_failure_without_a_loss() -> None:
    b = GraphBuilder()
    with pytest.raises(
        PassError, match="^emit-activations: cannot run: the graph does not end in one loss of its logits"
    ):
        PASS(b.done(b.hidden()))
