from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from prgec.errors import PassError
from prgec.passes.differentiate import Differentiate, outputs_of
from prgec.passes.infra import CHANGES
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from prgec.passes.sites import b_names
from tests.passes.builder import GraphBuilder, seq_lens
from tests.passes.golden import expect, run_pass
from tests.passes.gradient_graphs import appended, done, finished, layer, one_layer, rows, two_blocks
from tests.passes.parity import run

aten = torch.ops.aten
PASS = Differentiate()
SHORTCUT = Differentiate(method="shortcut")


def example() -> GraphProgram:
    return one_layer()


def test_hit() -> None:
    expect(
        print_program(example()) + "---\n" + appended(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.linear(%0, @layers.0.proj.weight)
  %2: f32[2, T, 2] = aten.linear(%0, @layers.0.proj.lora_A)
  %3: f32[1, 2, 4] = aten.view(@layers.0.proj.lora_B, [1, 2, 4])
  %4: f32[1, 2*T, 2] = aten.reshape(%2, [1, -1, 2])
  %5: f32[1, 2*T, 4] = aten.bmm(%4, %3)
  %6: f32[1, 2, T, 4] = aten.view(%5, [1, 2, -1, 4])
  %7: f32[2, T, 4] = aten.view(%6, [2, -1, 4])
  %8: f32[2, T, 4] = aten.add(%1, %7)
  %9: size = aten.sym_size.int(tokens, 1)
  %10: i64[T] = aten.slice(@positions, 0, 0, %9)
  %11: i64[2, 2, 1] = aten.unsqueeze(label_pos, -1)
  %12: bool[2, 2, T] = aten.eq(%11, %10)
  %13: f32[2, 2, T] = aten.to.dtype(%12, f32)
  %14: f32[2, 2, 4] = aten.bmm(%13, %8)
  %15: f32[2, 2, 5] = aten.linear(%14, @lm_head.weight)
  %16: f32[2, 2, 5] = aten.log_softmax.int(%15, -1)
  %17: bool[2, 2] = aten.ne.Scalar(targets, -100)
  %18: i64[2, 2] = aten.where.ScalarOther(%17, targets, 0)
  %19: i64[2, 2, 1] = aten.unsqueeze(%18, -1)
  %20: f32[2, 2, 1] = aten.gather(%16, 2, %19)
  %21: f32[2, 2] = aten.squeeze.dim(%20, -1)
  %22: f32[2, 2] = aten.where.ScalarOther(%17, %21, 0.0)
  %23: i64[2] = aten.sum.dim_IntList(%17, [1])
  %24: i64[2] = aten.clamp(%23, 1)
  %25: f32[2] = aten.sum.dim_IntList(%22, [1])
  %26: f32[2] = aten.neg(%25)
  %27: f32[2] = aten.div(%26, %24)
  return %27
---
  %28: bool[2, 2] = aten.ne.Scalar(targets, -100)
  %29: f32[2, 2] = aten.to.dtype(%28, f32)
  %30: f32[2, 1] = aten.sum.dim_IntList(%29, [1], True)
  %31: f32[2, 1] = aten.clamp(%30, 1.0)
  %32: f32[2, 1] = aten.mul(%31, 2.0)
  %33: f32[2, 2] = aten.div(%29, %32)
  %34: i64[2, 2, 1] = aten.unsqueeze(targets, -1)
  %35: bool[2, 2, 5] = aten.eq(%34, @folded.c0)
  %36: f32[2, 2, 5] = aten.to.dtype(%35, f32)
  %37: f32[2, 2, 5] = aten.softmax.int(%15, -1)
  %38: f32[2, 2, 5] = aten.sub(%37, %36)
  %39: f32[2, 2, 1] = aten.unsqueeze(%33, -1)
  %40: f32[2, 2, 5] = aten.mul(%38, %39)
  %41: f32[2, 2, 4] = aten.linear(%40, @lm_head.transposed.weight)
  %42: f32[2, T, 2] = aten.transpose.int(%13, 1, 2)
  %43: f32[2, T, 4] = aten.bmm(%42, %41)
  %44: f32[1, 2, T, 4] = aten.reshape(%43, [1, 2, -1, 4])
  %45: f32[1, 2*T, 4] = aten.reshape(%44, [1, -1, 4])
  %46: f32[1, 2, 2*T] = aten.transpose.int(%4, 1, 2)
  %47: f32[1, 2, 4] = aten.bmm(%46, %45)
  %48: f32[2, 4] = aten.reshape(%47, [2, 4])
  return %27, %48
""",
    )


def test_hit_weighted() -> None:
    """The input comes after the rows, and multiplies the weight of each label in the mean."""
    program = example()
    run_pass(program, Differentiate(weighted=True))
    header, *lines = print_program(program).splitlines()
    assert header == "graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2], weights: f32[2, 2]):"
    at = lines.index("  %33: f32[2, 2] = aten.div(%29, %32)")
    assert lines[at + 1] == "  %34: f32[2, 2] = aten.mul(%33, weights)"
    assert "  %40: f32[2, 2, 1] = aten.unsqueeze(%34, -1)" in lines


def test_miss_frozen_layers_get_no_transposed_copy() -> None:
    """Nothing below the first trained layer is differentiated, and the shortcut copies only the last block."""
    programs = {"exact": two_blocks(), "shortcut": two_blocks(), "last": two_blocks(trained=(1,))}
    for name, program in programs.items():
        run_pass(program, SHORTCUT if name == "shortcut" else PASS)
    copies = {
        name: sorted(n for n, _ in each.module.named_buffers() if ".transposed." in n)
        for name, each in programs.items()
    }
    of_block_1 = [
        "layers.1.o_proj.transposed.lora_A_T",
        "layers.1.o_proj.transposed.weight",
        "lm_head.transposed.weight",
    ]
    assert copies == {"exact": of_block_1, "shortcut": of_block_1, "last": ["lm_head.transposed.weight"]}


def test_failure_on_a_second_run() -> None:
    program = example()
    run_pass(program, PASS)
    assert refusal(program) == "differentiate: cannot run: the graph returns gradients or state already"


def test_failure_unknown_method() -> None:
    with pytest.raises(PassError) as error:
        Differentiate(method="forward")(example())
    assert str(error.value) == "differentiate: cannot run: method is 'forward'; expected one of exact, shortcut"


@pytest.mark.parametrize("scale", [0.0, -2.0, 3.0])
def test_failure_loss_scale(scale: float) -> None:
    with pytest.raises(PassError, match=f"loss-scale is {scale}; expected a power of two"):
        Differentiate(loss_scale=scale)(example())


@pytest.mark.parametrize("method", ["exact", "shortcut"])
def test_hit_a_loss_scale_is_taken_off_by_the_last_op(method: str) -> None:
    """Values inside are larger, results are equal to the bit."""
    plain, scaled = two_blocks(), two_blocks()
    run_pass(plain, Differentiate(method))
    run_pass(scaled, Differentiate(method, loss_scale=1024.0))
    inputs = rows(plain, 6)
    for ours, theirs in zip(run(scaled, inputs), run(plain, inputs), strict=True):
        assert torch.equal(ours, theirs)
    returned = outputs_of(scaled)[1:]
    assert [node.args[1] for node in returned] == [1 / 1024.0] * 2
    assert all(node.target is aten.mul.Tensor for node in returned)


def test_failure_no_site() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    assert refusal(done(b, b.hidden())) == "differentiate: cannot run: no layer is trained"


@pytest.mark.parametrize("count", [0, 2])
def test_failure_number_of_log_softmaxes(count: int) -> None:
    b = GraphBuilder(num_rows=2)
    hidden = layer(b, b.hidden(), "layers.0.proj")
    for _ in range(count):
        hidden = b.call(aten.log_softmax.int, hidden, -1)
    program = finished(b.done(hidden))
    assert refusal(program) == "differentiate: cannot run: the graph does not end in one log_softmax of its logits"


def test_failure_names_an_op_without_a_derivative_and_its_place() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    hidden = b.call(aten.sin.default, layer(b, b.hidden(), "layers.0.proj"))
    hidden.meta["stack_trace"] = '  File "/models/modeling_wave.py", line 41, in forward\n    return x.sin()'
    assert refusal(done(b, hidden)) == (
        "differentiate: there is no derivative of %sin_default aten.sin.default (modeling_wave.py:41). "
        "Hint: train fewer layers, so that no gradient passes it, or use method prge"
    )


def refusal(program: GraphProgram, each: Differentiate = PASS) -> str:
    with pytest.raises(PassError) as error:
        each(program)
    return str(error.value)


@pytest.mark.parametrize("make", [example, two_blocks])
def test_parity_with_autograd(make: Callable[[], GraphProgram]) -> None:
    """The loss keeps its bits, and gradients are those PyTorch finds for the mean loss of the graph from before."""
    plain, program = make(), make()
    assert Differentiate.tier == CHANGES
    run_pass(program, PASS)
    for length in seq_lens(program):
        inputs = rows(program, length)
        expected_loss, expected = autograd(plain, inputs)
        found_loss, *found = run(program, inputs)
        assert torch.equal(found_loss, expected_loss)
        assert float(expected_loss[0]) > 0 == float(expected_loss[1])
        for ours, theirs in zip(found, expected, strict=True):
            assert float(theirs.norm()) > 1e-3
            assert float((ours - theirs).norm() / theirs.norm()) < 1e-6


def autograd(program: GraphProgram, inputs: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The losses of a graph, and the gradient of their mean by every B."""
    states = [program.module.get_buffer(name).requires_grad_() for name in b_names(program)]
    (losses,) = program.module(*inputs)
    return losses.detach(), torch.autograd.grad(losses.mean(), states)
