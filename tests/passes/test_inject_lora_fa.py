from __future__ import annotations

import pytest
import torch

from prgec.errors import PassError, UsageError
from prgec.passes.inject_lora_fa import InjectLoraFa
from prgec.passes.program import GraphProgram
from prgec.passes.sites import sites_of
from prgec.runtime_ops.lora import lora_a
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import run

aten = torch.ops.aten
PASS = InjectLoraFa(rank=2, alpha=4.0, seed=5)


def example() -> GraphProgram:
    """Two projections of one layer, one with a bias and out != in, and the LM head, which is not a default target."""
    b = GraphBuilder(dynamic=True)
    hidden = b.hidden()
    query = b.call(aten.linear.default, hidden, b.weight("layers.0.q_proj.weight", 4, 4))
    value = b.call(
        aten.linear.default, query, b.weight("layers.0.v_proj.weight", 3, 4), b.weight("layers.0.v_proj.bias", 3)
    )
    return b.done(b.call(aten.linear.default, value, b.weight("lm_head.weight", 6, 3)))


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 4] = aten.linear(%0, @layers.0.q_proj.weight)
  %2: f32[4, T, 3] = aten.linear(%1, @layers.0.v_proj.weight, @layers.0.v_proj.bias)
  %3: f32[4, T, 6] = aten.linear(%2, @lm_head.weight)
  return %3
--- inject-lora-fa: 2 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 4] = aten.linear(%0, @layers.0.q_proj.weight)
  %2: f32[4, T, 2] = aten.linear(%0, @layers.0.q_proj.lora_A)
  %3: f32[4, T, 4] = aten.matmul(%2, @layers.0.q_proj.lora_B)
  %4: f32[4, T, 4] = aten.add(%1, %3)
  %5: f32[4, T, 3] = aten.linear(%4, @layers.0.v_proj.weight, @layers.0.v_proj.bias)
  %6: f32[4, T, 2] = aten.linear(%4, @layers.0.v_proj.lora_A)
  %7: f32[4, T, 3] = aten.matmul(%6, @layers.0.v_proj.lora_B)
  %8: f32[4, T, 3] = aten.add(%5, %7)
  %9: f32[4, T, 6] = aten.linear(%8, @lm_head.weight)
  return %9
""",
    )


def test_miss_of_a_weight_that_no_linear_layer_holds() -> None:
    """Routers and experts multiply by weights of their own; PEFT has no adapter for them."""
    program = example()
    query, value, _ = program.calls(aten.linear.default)
    query.meta["nn_module_stack"] = {"m": ("layers.0.mlp.gate", "transformers.models.qwen3_moe.Qwen3MoeTopKRouter")}
    value.meta["nn_module_stack"] = {"m": ("layers.0.v_proj", "torch.nn.modules.linear.Linear")}
    run_pass(program, PASS)
    assert [site.name for site in sites_of(program)] == ["layers.0.v_proj"]


def test_hit_frozen_matrices_are_scaled_by_alpha_over_rank() -> None:
    program = example()
    run_pass(program, PASS)
    assert torch.equal(program.module.get_buffer("layers.0.q_proj.lora_A"), 2.0 * lora_a(5, 0, 2, 4))
    assert torch.equal(program.module.get_buffer("layers.0.v_proj.lora_A"), 2.0 * lora_a(5, 1, 2, 4))


@pytest.mark.parametrize(
    ("targets", "sites"),
    [
        (("q_proj",), ["layers.0.q_proj"]),
        (("v_proj", "q_proj"), ["layers.0.q_proj", "layers.0.v_proj"]),
        ((r"layers\.\d+\.v.*",), ["layers.0.v_proj"]),
        (("lm_head", "q_proj"), ["layers.0.q_proj", "lm_head"]),
        (("all-linear", "lm_head"), ["layers.0.q_proj", "layers.0.v_proj", "lm_head"]),
    ],
)
def test_hit_targets(targets: tuple[str, ...], sites: list[str]) -> None:
    program = example()
    run_pass(program, InjectLoraFa(targets=targets, rank=1))
    assert sorted(n for n, _ in program.module.named_buffers() if n.endswith("lora_B")) == [
        f"{s}.lora_B" for s in sites
    ]


def test_hit_branch_adds_its_product() -> None:
    """With B at anything but zero, the layer is W + (alpha/r A^T B)^T."""
    program = example()
    inputs = row_inputs(program)
    run_pass(program, InjectLoraFa(targets=("lm_head",), rank=2, alpha=4.0))
    state = torch.randn(2, 6, generator=torch.Generator().manual_seed(1))
    program.module.get_buffer("lm_head.lora_B").copy_(state)
    merged = example()
    weight = merged.module.get_buffer("lm_head.weight")
    weight += (2.0 * lora_a(0, 0, 2, 3).T @ state).T
    torch.testing.assert_close(run(program, inputs)[0], run(merged, inputs)[0])


def test_miss_other_dtype_low_rank_and_shared_layers() -> None:
    b = GraphBuilder()
    hidden = b.hidden()
    half = b.call(aten.to.dtype, hidden, torch.bfloat16)
    outputs = [
        b.call(aten.linear.default, half, b.tensor("h.half_proj.weight", torch.ones(4, 4, dtype=torch.bfloat16)))
    ]
    row = b.call(aten.select.int, b.call(aten.select.int, hidden, 0, 0), 0, 0)
    outputs.append(b.call(aten.linear.default, row, b.weight("h.row_proj.weight", 4, 4)))
    outputs.append(b.call(aten.linear.default, hidden, b.weight("h.shared.weight", 4, 4)))
    outputs.append(b.call(aten.linear.default, outputs[-1], b.read("h.shared.weight")))
    outputs.append(b.call(aten.linear.default, hidden, b.weight("h.good.weight", 4, 4)))
    expect(
        transcript(b.done(*outputs), InjectLoraFa(rank=1)),
        """\
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: bf16[4, 8, 4] = aten.to.dtype(%0, bf16)
  %2: bf16[4, 8, 4] = aten.linear(%1, @h.half_proj.weight)
  %3: f32[8, 4] = aten.select.int(%0, 0, 0)
  %4: f32[4] = aten.select.int(%3, 0, 0)
  %5: f32[4] = aten.linear(%4, @h.row_proj.weight)
  %6: f32[4, 8, 4] = aten.linear(%0, @h.shared.weight)
  %7: f32[4, 8, 4] = aten.linear(%6, @h.shared.weight)
  %8: f32[4, 8, 4] = aten.linear(%0, @h.good.weight)
  return %2, %5, %6, %7, %8
--- inject-lora-fa: 1 hits
refused h.half_proj: computes in torch.bfloat16; expected f32
refused h.row_proj: its input has rank 1; expected rows first
refused h.shared: is called 2 times; a branch serves one call
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: bf16[4, 8, 4] = aten.to.dtype(%0, bf16)
  %2: bf16[4, 8, 4] = aten.linear(%1, @h.half_proj.weight)
  %3: f32[8, 4] = aten.select.int(%0, 0, 0)
  %4: f32[4] = aten.select.int(%3, 0, 0)
  %5: f32[4] = aten.linear(%4, @h.row_proj.weight)
  %6: f32[4, 8, 4] = aten.linear(%0, @h.shared.weight)
  %7: f32[4, 8, 4] = aten.linear(%6, @h.shared.weight)
  %8: f32[4, 8, 4] = aten.linear(%0, @h.good.weight)
  %9: f32[4, 8, 1] = aten.linear(%0, @h.good.lora_A)
  %10: f32[4, 8, 4] = aten.matmul(%9, @h.good.lora_B)
  %11: f32[4, 8, 4] = aten.add(%8, %10)
  return %2, %5, %6, %7, %11
""",
    )


def residual_example() -> GraphProgram:
    """Two blocks of two layers on a stream, and the LM head."""
    b = GraphBuilder(dynamic=True)
    stream = b.hidden()
    for block in range(2):
        inner = b.call(aten.linear.default, stream, b.weight(f"layers.{block}.up_proj.weight", 4, 4))
        outer = b.call(aten.linear.default, inner, b.weight(f"layers.{block}.down_proj.weight", 4, 4))
        stream = b.call(aten.add.Tensor, stream, outer)
    return b.done(b.call(aten.linear.default, stream, b.weight("lm_head.weight", 6, 4)))


@pytest.mark.parametrize(
    ("targets", "sites"),
    [
        (("all-linear",), ["layers.0.down_proj", "layers.1.up_proj", "layers.1.down_proj"]),
        (("up_proj",), ["layers.1.up_proj"]),
        (("down_proj", "lm_head"), ["layers.0.down_proj", "layers.1.down_proj", "lm_head"]),
    ],
)
def test_hit_only_writers(targets: tuple[str, ...], sites: list[str]) -> None:
    """All of the last block and what is in none, and below it layers that write to the stream."""
    program = residual_example()
    run_pass(program, InjectLoraFa(targets=targets, rank=2, only_writers=True))
    assert [site.name for site in sites_of(program)] == sites


def test_hit_only_writers_of_the_chosen_blocks() -> None:
    program = residual_example()
    run_pass(program, InjectLoraFa(rank=2, only_writers=True, layers=("0",)))
    assert [site.name for site in sites_of(program)] == ["layers.0.up_proj", "layers.0.down_proj"]


def test_failure_only_writers_without_a_stream() -> None:
    with pytest.raises(UsageError) as error:
        InjectLoraFa(rank=2, only_writers=True)(example())
    assert str(error.value) == ("the model has no residual stream that layers write to. Hint: train with method exact")


def test_miss_weight_that_is_no_attribute() -> None:
    b = GraphBuilder()
    hidden = b.hidden()
    computed = b.call(aten.neg.default, b.weight("a.weight", 4, 4))
    b2 = b.call(aten.linear.default, hidden, computed)
    program = b.done(b2, b.call(aten.linear.default, hidden, b.weight("b.weight", 4, 4)))
    result = run_pass(program, PASS)
    assert (result.hits, result.refusals) == (1, ())


def test_failure_on_a_second_run() -> None:
    program = example()
    run_pass(program, PASS)
    with pytest.raises(PassError) as error:
        PASS(program)
    assert str(error.value) == "inject-lora-fa: cannot run: the graph has LoRA-FA sites already"


@pytest.mark.parametrize(
    ("each", "text"),
    [
        (InjectLoraFa(rank=0), "inject-lora-fa: cannot run: rank is 0; expected at least 1"),
        (
            InjectLoraFa(targets=("w_proj",)),
            "no Linear layer is called 'w_proj'. Hint: this model has: lm_head, q_proj, v_proj",
        ),
        (
            InjectLoraFa(targets=("q_proj", "(")),
            "targets '(' is not a regular expression: missing ), unterminated subpattern at position 0",
        ),
    ],
)
def test_failure(each: InjectLoraFa, text: str) -> None:
    with pytest.raises((PassError, UsageError)) as error:
        each(example())
    assert str(error.value) == text


def test_failure_when_every_site_is_refused() -> None:
    b = GraphBuilder()
    half = b.call(aten.to.dtype, b.hidden(), torch.bfloat16)
    linear = b.call(aten.linear.default, half, b.tensor("q.weight", torch.ones(4, 4, dtype=torch.bfloat16)))
    with pytest.raises(UsageError) as error:
        PASS(b.done(linear))
    assert str(error.value) == "no layer could be made trainable (q: computes in torch.bfloat16; expected f32)"
