from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from prgec.contract.names import IGNORE_TARGET, STATE_SUFFIX
from prgec.errors import PassError
from prgec.passes.branch_to_bmm import BranchToBmm
from prgec.passes.differentiate import Differentiate, outputs_of
from prgec.passes.infra import CHANGES
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from prgec.passes.shapes import shape_of
from prgec.passes.sites import b_names
from tests.passes.builder import GraphBuilder, row_inputs, seq_lens
from tests.passes.golden import expect, run_pass
from tests.passes.parity import run

aten = torch.ops.aten
EACH = Differentiate()
SHORTCUT = Differentiate(method="shortcut")
WIDTH, VOCAB, RANK = 4, 5, 2


def example() -> GraphProgram:
    """One trained layer, its label positions, a head, and the loss."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    return done(b, layer(b, b.hidden(), "layers.0.proj"))


def residual_example(trained: Sequence[int] = (0, 1)) -> GraphProgram:
    """A stream that two blocks write to, with the trained ones among them."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    stream = b.hidden()
    for block in range(2):
        written = layer(b, stream, f"layers.{block}.o_proj", is_trained=block in trained)
        stream = b.call(aten.add.Tensor, stream, written)
    return done(b, stream)


def layer(b: GraphBuilder, x: Node, name: str, *, out: int = WIDTH, is_trained: bool = True) -> Node:
    """A frozen layer, with its branch where it is trained."""
    weight = torch.randn(out, WIDTH, generator=torch.Generator().manual_seed(len(name)))
    # Small, so that no softmax is all but certain.
    frozen = b.call(aten.linear.default, x, b.tensor(f"{name}.weight", 0.3 * weight))
    if not is_trained:
        return frozen
    return b.call(aten.add.Tensor, frozen, b.injected_site(x, name, rank=RANK, out=out))


def done(b: GraphBuilder, hidden: Node, *, head_is_trained: bool = False) -> GraphProgram:
    """Add label positions, head and loss; bring branches into the form the pass reads, and give every B values."""
    table = b.call(aten.slice.Tensor, b.tensor("positions", torch.arange(8)), 0, 0, b.length())
    chosen = b.call(aten.eq.Tensor, b.call(aten.unsqueeze.default, b.label_pos, -1), table)
    rows = b.call(aten.bmm.default, b.call(aten.to.dtype, chosen, torch.float32), hidden)
    logits = layer(b, rows, "lm_head", out=VOCAB, is_trained=head_is_trained)
    return finished(b.done(loss(b, logits)))


def loss(b: GraphBuilder, logits: Node) -> Node:
    """Mean negative log-likelihood by row, spelled as the tracer spells it."""
    log_probs = b.call(aten.log_softmax.int, logits, -1)
    counts = b.call(aten.ne.Scalar, b.targets, IGNORE_TARGET)
    safe = b.call(aten.where.ScalarOther, counts, b.targets, 0)
    picked = b.call(aten.gather.default, log_probs, 2, b.call(aten.unsqueeze.default, safe, -1))
    nll = b.call(aten.where.ScalarOther, counts, b.call(aten.squeeze.dim, picked, -1), 0.0)
    num_counted = b.call(aten.clamp.default, b.call(aten.sum.dim_IntList, counts, [1]), 1)
    return b.call(aten.div.Tensor, b.call(aten.neg.default, b.call(aten.sum.dim_IntList, nll, [1])), num_counted)


def finished(program: GraphProgram) -> GraphProgram:
    """What branch-to-bmm makes of a graph, with values in every B."""
    run_pass(program, BranchToBmm())
    for name, buffer in program.module.named_buffers():
        if name.endswith(STATE_SUFFIX):
            buffer.copy_(torch.linspace(-0.3, 0.3, buffer.numel()).reshape(buffer.shape))
    return program


def test_hit() -> None:
    expect(
        print_program(example()) + "---\n" + appended(example(), EACH),
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


def test_hit_shortcut() -> None:
    """Block 1 is walked through; block 0 takes the gradient at the input of block 1 (%66) as it is."""
    expect(
        appended(residual_example(), SHORTCUT),
        """\
  %38: bool[2, 2] = aten.ne.Scalar(targets, -100)
  %39: f32[2, 2] = aten.to.dtype(%38, f32)
  %40: f32[2, 1] = aten.sum.dim_IntList(%39, [1], True)
  %41: f32[2, 1] = aten.clamp(%40, 1.0)
  %42: f32[2, 1] = aten.mul(%41, 2.0)
  %43: f32[2, 2] = aten.div(%39, %42)
  %44: i64[2, 2, 1] = aten.unsqueeze(targets, -1)
  %45: bool[2, 2, 5] = aten.eq(%44, @folded.c0)
  %46: f32[2, 2, 5] = aten.to.dtype(%45, f32)
  %47: f32[2, 2, 5] = aten.softmax.int(%25, -1)
  %48: f32[2, 2, 5] = aten.sub(%47, %46)
  %49: f32[2, 2, 1] = aten.unsqueeze(%43, -1)
  %50: f32[2, 2, 5] = aten.mul(%48, %49)
  %51: f32[2, 2, 4] = aten.linear(%50, @lm_head.transposed.weight)
  %52: f32[2, T, 2] = aten.transpose.int(%23, 1, 2)
  %53: f32[2, T, 4] = aten.bmm(%52, %51)
  %54: f32[1, 2, T, 4] = aten.reshape(%53, [1, 2, -1, 4])
  %55: f32[1, 2*T, 4] = aten.reshape(%54, [1, -1, 4])
  %56: f32[1, 4, 2] = aten.transpose.int(%12, 1, 2)
  %57: f32[1, 2*T, 2] = aten.bmm(%55, %56)
  %58: f32[1, 2, 2*T] = aten.transpose.int(%13, 1, 2)
  %59: f32[1, 2, 4] = aten.bmm(%58, %55)
  %60: f32[1, 2, T, 2] = aten.reshape(%57, [1, 2, -1, 2])
  %61: f32[2, T, 2] = aten.reshape(%60, [2, -1, 2])
  %62: f32[2, 4] = aten.reshape(%59, [2, 4])
  %63: f32[2, T, 4] = aten.linear(%61, @layers.1.o_proj.transposed.lora_A_T)
  %64: f32[2, T, 4] = aten.add(%53, %63)
  %65: f32[2, T, 4] = aten.linear(%53, @layers.1.o_proj.transposed.weight)
  %66: f32[2, T, 4] = aten.add(%64, %65)
  %67: f32[1, 2, T, 4] = aten.reshape(%66, [1, 2, -1, 4])
  %68: f32[1, 2*T, 4] = aten.reshape(%67, [1, -1, 4])
  %69: f32[1, 2, 2*T] = aten.transpose.int(%4, 1, 2)
  %70: f32[1, 2, 4] = aten.bmm(%69, %68)
  %71: f32[2, 4] = aten.reshape(%70, [2, 4])
  return %37, %71, %62
""",
    )


def appended(program: GraphProgram, each: Differentiate) -> str:
    """The lines a pass puts behind a graph, whose own lines stay as they were."""
    before = print_program(program).splitlines()[:-1]
    run_pass(program, each)
    after = print_program(program).splitlines()
    assert after[: len(before)] == before
    return "".join(f"{line}\n" for line in after[len(before) :])


def test_hit_a_site_outside_all_blocks_counts_to_the_last() -> None:
    """A trained head has no number; the shortcut differentiates it as it is."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    stream = b.hidden()
    written = layer(b, stream, "layers.0.o_proj")
    program = done(b, b.call(aten.add.Tensor, stream, written), head_is_trained=True)
    run_pass(program, SHORTCUT)
    assert [tuple(shape_of(node)) for node in outputs_of(program)] == [(2,), (RANK, WIDTH), (RANK, VOCAB)]


def test_miss_frozen_layers_get_no_transposed_copy() -> None:
    """Nothing below the first trained layer is differentiated, and the shortcut copies only the last block."""
    programs = {"exact": residual_example(), "shortcut": residual_example(), "last": residual_example(trained=(1,))}
    for name, program in programs.items():
        run_pass(program, SHORTCUT if name == "shortcut" else EACH)
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
    run_pass(program, EACH)
    assert refusal(program) == "differentiate: cannot run: the graph returns gradients or state already"


def test_failure_unknown_method() -> None:
    with pytest.raises(PassError) as error:
        Differentiate(method="forward")(example())
    assert str(error.value) == "differentiate: cannot run: method is 'forward'; expected one of exact, shortcut"


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
        "Hint: train fewer layers, so that it is not on the way, or use method prge"
    )


def test_failure_shortcut_with_sites_that_write_nothing() -> None:
    """In a lower block, only writers are reached by what is handed down."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    stream = b.hidden()
    for block in range(2):
        inner = layer(b, stream, f"layers.{block}.up_proj")
        stream = b.call(aten.add.Tensor, stream, layer(b, inner, f"layers.{block}.down_proj"))
    assert refusal(done(b, stream), SHORTCUT) == (
        "differentiate: no gradient reaches layers.0.up_proj.lora_B. "
        "Hint: with method=shortcut, sites are those of inject-lora-fa{only-writers=true}"
    )


def test_failure_shortcut_without_a_stream() -> None:
    assert refusal(example(), SHORTCUT) == (
        "differentiate: block 0 writes to no residual stream. Hint: use method exact"
    )


def refusal(program: GraphProgram, each: Differentiate = EACH) -> str:
    with pytest.raises(PassError) as error:
        each(program)
    return str(error.value)


@pytest.mark.parametrize("make", [example, residual_example])
def test_parity_with_autograd(make: Callable[[], GraphProgram]) -> None:
    """The loss keeps its bits, and gradients are those PyTorch finds for the mean loss of the graph from before."""
    plain, program = make(), make()
    assert Differentiate.tier == CHANGES
    run_pass(program, EACH)
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


def test_parity_of_the_shortcut() -> None:
    """Exact in block 1; block 0 takes the gradient at the input of block 1, by no other way than the stream."""
    program = residual_example()
    held = dict(program.module.named_buffers())
    inputs = rows(program, 7)
    embedded = held["embed.weight"][inputs[0]]
    stream = (embedded + _layer(held, 0, embedded)).requires_grad_()
    last = held["layers.1.o_proj.lora_B"].clone().requires_grad_()
    losses = _losses(held, stream + _layer({**held, "layers.1.o_proj.lora_B": last}, 1, stream), inputs)
    handed_down, of_last = torch.autograd.grad(losses.mean(), (stream, last))
    of_first = torch.einsum("ntr,nto->ro", embedded @ held["layers.0.o_proj.lora_A"].T, handed_down)
    run_pass(program, SHORTCUT)
    found_losses, *found = run(program, inputs)
    torch.testing.assert_close(found_losses, losses.detach(), rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(found, (of_first, of_last), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-6


def _layer(held: Mapping[str, Tensor], block: int, x: Tensor) -> Tensor:
    weight, a, b = (held[f"layers.{block}.o_proj.{leaf}"] for leaf in ("weight", "lora_A", "lora_B"))
    return x @ weight.T + (x @ a.T) @ b


def _losses(held: Mapping[str, Tensor], stream: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    _, label_pos, targets = inputs
    picked = torch.stack([row[positions] for row, positions in zip(stream, label_pos, strict=True)])
    nll = F.cross_entropy((picked @ held["lm_head.weight"].T).transpose(1, 2), targets, reduction="none")
    return nll.sum(1) / (targets != IGNORE_TARGET).sum(1).clamp(min=1)


def rows(program: GraphProgram, length: int) -> tuple[Tensor, ...]:
    """Inputs of a call where the first row ignores one label, and the second both."""
    tokens, label_pos, targets = row_inputs(program, seed=length, seq_len=length)
    targets[0, 1] = targets[1, 0] = targets[1, 1] = IGNORE_TARGET
    return tokens, label_pos, targets
