from __future__ import annotations

import pytest
import torch

from prgec.errors import PassError
from prgec.passes.narrow_weights import NarrowWeights
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import run

aten = torch.ops.aten
PASS = NarrowWeights(bits=8, group=2)


def example() -> GraphProgram:
    """A site with its LoRA branch, which stays as it is, and a second layer on the same input."""
    b = GraphBuilder(dynamic=True)
    hidden = b.hidden()
    query = b.call(aten.linear.default, hidden, b.weight("q_proj.weight", 3, 4), b.weight("q_proj.bias", 3))
    branch = b.injected_site(hidden, "q_proj", rank=1, out=3)
    value = b.call(aten.linear.default, hidden, b.weight("v_proj.weight", 2, 4))
    return b.done(b.call(aten.add.Tensor, query, branch), value)


def test_hit_halves() -> None:
    expect(
        transcript(example(), NarrowWeights()),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 3] = aten.linear(%0, @q_proj.weight, @q_proj.bias)
  %2: f32[4, T, 1] = aten.linear(%0, @q_proj.lora_A)
  %3: f32[4, T, 3] = aten.matmul(%2, @q_proj.lora_B)
  %4: f32[4, T, 2] = aten.linear(%0, @v_proj.weight)
  %5: f32[4, T, 3] = aten.add(%1, %3)
  return %5, %4
--- narrow-weights: 3 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: bf16[4, T, 4] = aten.embedding(@embed.weight_bf16, tokens)
  %1: f32[4, T, 4] = aten._to_copy(%0, dtype=f32)
  %2: bf16[4, T, 4] = aten._to_copy(%1, dtype=bf16)
  %3: bf16[4, T, 3] = aten.linear(%2, @q_proj.weight_bf16, @q_proj.bias_bf16)
  %4: f32[4, T, 3] = aten._to_copy(%3, dtype=f32)
  %5: f32[4, T, 1] = aten.linear(%1, @q_proj.lora_A)
  %6: f32[4, T, 3] = aten.matmul(%5, @q_proj.lora_B)
  %7: bf16[4, T, 2] = aten.linear(%2, @v_proj.weight_bf16)
  %8: f32[4, T, 2] = aten._to_copy(%7, dtype=f32)
  %9: f32[4, T, 3] = aten.add(%4, %6)
  return %9, %8
""",
    )


def test_hit_codes() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 3] = aten.linear(%0, @q_proj.weight, @q_proj.bias)
  %2: f32[4, T, 1] = aten.linear(%0, @q_proj.lora_A)
  %3: f32[4, T, 3] = aten.matmul(%2, @q_proj.lora_B)
  %4: f32[4, T, 2] = aten.linear(%0, @v_proj.weight)
  %5: f32[4, T, 3] = aten.add(%1, %3)
  return %5, %4
--- narrow-weights: 3 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: bf16[4, T, 4] = aten.embedding(@embed.weight_bf16, tokens)
  %1: f32[4, T, 4] = aten._to_copy(%0, dtype=f32)
  %2: bf16[4, T, 4] = aten._to_copy(%1, dtype=bf16)
  %3: bf16[3, 4] = aten._to_copy(@q_proj.weight_qdata, dtype=bf16)
  %4: bf16[3, 2, 2] = aten.view(%3, [3, 2, 2])
  %5: bf16[3, 2, 2] = aten.mul(%4, @q_proj.weight_scale)
  %6: bf16[3, 4] = aten.view(%5, [3, 4])
  %7: bf16[4, T, 3] = aten.linear(%2, %6, @q_proj.bias_bf16)
  %8: f32[4, T, 3] = aten._to_copy(%7, dtype=f32)
  %9: f32[4, T, 1] = aten.linear(%1, @q_proj.lora_A)
  %10: f32[4, T, 3] = aten.matmul(%9, @q_proj.lora_B)
  %11: bf16[2, 4] = aten._to_copy(@v_proj.weight_qdata, dtype=bf16)
  %12: bf16[2, 2, 2] = aten.view(%11, [2, 2, 2])
  %13: bf16[2, 2, 2] = aten.mul(%12, @v_proj.weight_scale)
  %14: bf16[2, 4] = aten.view(%13, [2, 4])
  %15: bf16[4, T, 2] = aten.linear(%2, %14)
  %16: f32[4, T, 2] = aten._to_copy(%15, dtype=f32)
  %17: f32[4, T, 3] = aten.add(%8, %10)
  return %17, %16
""",
    )


def test_hit_nibbles() -> None:
    b = GraphBuilder()
    expect(
        transcript(
            b.done(b.call(aten.linear.default, b.weight("x", 2, 4), b.weight("layer.weight", 3, 4))),
            NarrowWeights(dtype="f16", bits=4, group=2),
        ),
        """\
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[2, 3] = aten.linear(@x, @layer.weight)
  return %0
--- narrow-weights: 1 hits
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f16[2, 4] = aten._to_copy(@x, dtype=f16)
  %1: u8[3, 2] = aten.bitwise_and.Scalar(@layer.weight_qdata, 15)
  %2: u8[3, 2] = aten.bitwise_right_shift.Tensor_Scalar(@layer.weight_qdata, 4)
  %3: u8[3, 2, 2] = aten.stack([%1, %2], -1)
  %4: f16[3, 2, 2] = aten._to_copy(%3, dtype=f16)
  %5: f16[3, 2, 2] = aten.sub(%4, 8.0)
  %6: f16[3, 2, 2] = aten.view(%5, [3, 2, 2])
  %7: f16[3, 2, 2] = aten.mul(%6, @layer.weight_scale)
  %8: f16[3, 4] = aten.view(%7, [3, 4])
  %9: f16[2, 3] = aten.linear(%0, %8)
  %10: f32[2, 3] = aten._to_copy(%9, dtype=f32)
  return %10
""",
    )


def test_miss() -> None:
    """Half precision already, and constants that some pass made."""
    b = GraphBuilder()
    hidden = b.call(aten.mul.Tensor, b.weight("x", 2, 4), 2.0)
    half = b.call(
        aten.linear.default,
        b.call(aten.to.dtype, hidden, torch.float16),
        b.tensor("small.weight", torch.ones(2, 4, dtype=torch.float16)),
    )
    mean = b.call(aten.linear.default, hidden, b.tensor("folded.c0", torch.full((1, 4), 0.25)))
    expect(
        transcript(b.done(half, mean), PASS),
        """\
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[2, 4] = aten.mul(@x, 2.0)
  %1: f16[2, 4] = aten.to.dtype(%0, f16)
  %2: f16[2, 2] = aten.linear(%1, @small.weight)
  %3: f32[2, 1] = aten.linear(%0, @folded.c0)
  return %2, %3
--- narrow-weights: 0 hits
refused small: it computes in torch.float16; expected f32
(same)
""",
    )


def test_a_width_that_is_no_multiple_of_the_group_keeps_16_bits() -> None:
    program = example()
    result = run_pass(program, NarrowWeights(bits=8, group=8))
    assert [str(each) for each in result.refusals] == [
        f"{name}: its width 4 is not a multiple of group=8; it keeps 16 bits" for name in ("q_proj", "v_proj")
    ]
    assert program.module.get_buffer("v_proj.weight_bf16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("each", "reason"),
    [
        (NarrowWeights(dtype="f8"), "dtype is 'f8'; expected one of bf16, f16"),
        (NarrowWeights(bits=2), "bits is 2; expected 16, 8 or 4"),
        (NarrowWeights(group=3), "group is 3; expected an even number"),
    ],
)
def test_failure(each: NarrowWeights, reason: str) -> None:
    with pytest.raises(PassError) as error:
        each(example())
    assert str(error.value) == f"narrow-weights: cannot run: {reason}"


@pytest.mark.parametrize(
    ("dtype", "bits", "low", "high"),
    [("f16", 16, 1e-5, 2e-3), ("bf16", 16, 1e-4, 1e-2), ("bf16", 8, 1e-3, 2e-2), ("bf16", 4, 2e-2, 0.15)],
)
def test_parity_as_far_as_the_bits_go(dtype: str, bits: int, low: float, high: float) -> None:
    b = GraphBuilder(dynamic=True)
    linear = b.call(aten.linear.default, b.hidden(64), b.weight("layer.weight", 8, 64), b.weight("layer.bias", 8))
    program = b.done(linear)
    rows = row_inputs(program)
    exact = run(program, rows)[0]
    run_pass(program, NarrowWeights(dtype=dtype, bits=bits, group=32))
    error = float((run(program, rows)[0] - exact).norm() / exact.norm())
    assert low < error < high


@pytest.mark.parametrize("bits", [8, 4])
def test_parity_with_torchaos_dequantisation(bits: int) -> None:
    """With inputs and scales that 16 bits hold exactly, the weights are the ones torchao's own tensor stands for."""
    from torchao.quantization import IntxUnpackedToInt8Tensor
    from torchao.quantization.quant_primitives import MappingType

    weight = torch.randint(-64, 64, (4, 32), generator=torch.Generator().manual_seed(0)) / 8.0
    # The largest value of each group decides its scale.
    weight[:, ::16] = {8: 127.5, 4: 7.5}[bits]
    b = GraphBuilder()
    program = b.done(b.call(aten.linear.default, b.tensor("eye", torch.eye(32)), b.tensor("layer.weight", weight)))
    run_pass(program, NarrowWeights(bits=bits, group=16))
    theirs = IntxUnpackedToInt8Tensor.from_hp(
        weight, (1, 16), getattr(torch, f"int{bits}"), mapping_type=MappingType.SYMMETRIC
    ).dequantize()
    torch.testing.assert_close(run(program, row_inputs(program))[0], theirs.T, rtol=1e-2, atol=0.0)
