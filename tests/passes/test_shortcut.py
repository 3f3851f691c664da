"""The shortcut of `differentiate`: exact in the last block, which hands the gradient at its input down the stream."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from prgec.core.contract.names import IGNORE_TARGET
from prgec.errors import PassError
from prgec.passes.differentiate import Differentiate, outputs_of
from prgec.passes.program import GraphProgram
from prgec.passes.shapes import shape_of
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass
from tests.passes.gradient_graphs import RANK, VOCAB, WIDTH, appended, done, layer, one_layer, rows, two_blocks
from tests.passes.parity import run

aten = torch.ops.aten
SHORTCUT = Differentiate(method="shortcut")


def test_hit() -> None:
    """Block 1 is walked through; block 0 takes the gradient at the input of block 1 (%66) as it is."""
    expect(
        appended(two_blocks(), SHORTCUT),
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
  %65: f32[1, 2*T, 4] = aten.linear(%55, @layers.1.o_proj.transposed.weight)
  %66: f32[1, 2, T, 4] = aten.reshape(%65, [1, 2, -1, 4])
  %67: f32[2, T, 4] = aten.reshape(%66, [2, -1, 4])
  %68: f32[2, T, 4] = aten.add(%64, %67)
  %69: f32[1, 2, T, 4] = aten.reshape(%68, [1, 2, -1, 4])
  %70: f32[1, 2*T, 4] = aten.reshape(%69, [1, -1, 4])
  %71: f32[1, 2, 2*T] = aten.transpose.int(%4, 1, 2)
  %72: f32[1, 2, 4] = aten.bmm(%71, %70)
  %73: f32[2, 4] = aten.reshape(%72, [2, 4])
  return %37, %73, %62
""",
    )


def test_hit_a_site_outside_all_blocks_counts_to_the_last() -> None:
    """A trained head has no number; the shortcut differentiates it as it is."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    stream = b.hidden()
    written = layer(b, stream, "layers.0.o_proj")
    program = done(b, b.call(aten.add.Tensor, stream, written), head_is_trained=True)
    run_pass(program, SHORTCUT)
    assert [tuple(shape_of(node)) for node in outputs_of(program)] == [(2,), (RANK, WIDTH), (RANK, VOCAB)]


def test_failure_with_sites_that_write_nothing() -> None:
    """In a lower block, only writers are reached by what is handed down."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    stream = b.hidden()
    for block in range(2):
        inner = layer(b, stream, f"layers.{block}.up_proj")
        stream = b.call(aten.add.Tensor, stream, layer(b, inner, f"layers.{block}.down_proj"))
    assert refusal(done(b, stream)) == (
        "differentiate: no gradient reaches layers.0.up_proj.lora_B. "
        "Hint: with method=shortcut, sites are those of inject-lora-fa{only-writers=true}"
    )


def test_failure_without_a_stream() -> None:
    assert refusal(one_layer()) == ("differentiate: block 0 writes to no residual stream. Hint: use method exact")


def refusal(program: GraphProgram) -> str:
    with pytest.raises(PassError) as error:
        SHORTCUT(program)
    return str(error.value)


def test_parity_with_autograd() -> None:
    """Exact in block 1; block 0 takes the gradient at the input of block 1, by no other way than the stream."""
    program = two_blocks()
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
