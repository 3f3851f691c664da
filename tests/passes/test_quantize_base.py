from __future__ import annotations

import pytest
import torch
from torch import nn

from prgec.errors import PassError
from prgec.passes.program import GraphProgram
from prgec.passes.quantize_base import QuantizeBase
from prgec.passes.weights import SCHEMES, rounded
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import run

aten = torch.ops.aten
PASS = QuantizeBase(scheme="8da4w", group=2)


def example() -> GraphProgram:
    """A site with its LoRA branch, which stays as it is, and a second layer on the same input."""
    b = GraphBuilder(dynamic=True)
    hidden = b.hidden()
    query = b.call(aten.linear.default, hidden, b.weight("q_proj.weight", 3, 4), b.weight("q_proj.bias", 3))
    branch = b.injected_site(hidden, "q_proj", rank=1, out=3)
    value = b.call(aten.linear.default, hidden, b.weight("v_proj.weight", 2, 4))
    return b.done(b.call(aten.add.Tensor, query, branch), value)


def test_hit() -> None:
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
--- quantize-base: 2 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: (f32[4, T], i8[4, T]) = torchao.choose_qparams_affine(%0, ASYMMETRIC, [1, 1, 4], i8, -128, 127, None, None, i8)
  %2: f32[4, T] = getitem(%1, 0)
  %3: i8[4, T] = getitem(%1, 1)
  %4: i8[4, T, 4] = torchao.quantize_affine(%0, [1, 1, 4], %2, %3, i8, -128, 127)
  %5: f32[4, T, 4] = torchao.dequantize_affine(%4, [1, 1, 4], %2, %3, i8, -128, 127)
  %6: f32[3, 4] = torchao.dequantize_affine(@q_proj.weight_qdata, [1, 2], @q_proj.weight_scale, @q_proj.weight_zero_point, i8, -8, 7)
  %7: f32[4, T, 3] = aten.linear(%5, %6, @q_proj.bias)
  %8: f32[4, T, 1] = aten.linear(%0, @q_proj.lora_A)
  %9: f32[4, T, 3] = aten.matmul(%8, @q_proj.lora_B)
  %10: f32[2, 4] = torchao.dequantize_affine(@v_proj.weight_qdata, [1, 2], @v_proj.weight_scale, @v_proj.weight_zero_point, i8, -8, 7)
  %11: f32[4, T, 2] = aten.linear(%5, %10)
  %12: f32[4, T, 3] = aten.add(%7, %9)
  return %12, %11
""",  # noqa: E501 - a golden line is as long as it is
    )


def test_hit_weights_only() -> None:
    """Inputs stay as they are; a scale an output, so any width will do."""
    expect(
        transcript(example(), QuantizeBase(scheme="w4a16", group=3)),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 3] = aten.linear(%0, @q_proj.weight, @q_proj.bias)
  %2: f32[4, T, 1] = aten.linear(%0, @q_proj.lora_A)
  %3: f32[4, T, 3] = aten.matmul(%2, @q_proj.lora_B)
  %4: f32[4, T, 2] = aten.linear(%0, @v_proj.weight)
  %5: f32[4, T, 3] = aten.add(%1, %3)
  return %5, %4
--- quantize-base: 2 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[3, 4] = quantized_decomposed.dequantize_per_channel(@q_proj.weight_qdata, @q_proj.weight_scale, @q_proj.weight_zero_point, 0, -7, 7, i8)
  %2: f32[4, T, 3] = aten.linear(%0, %1, @q_proj.bias)
  %3: f32[4, T, 1] = aten.linear(%0, @q_proj.lora_A)
  %4: f32[4, T, 3] = aten.matmul(%3, @q_proj.lora_B)
  %5: f32[2, 4] = quantized_decomposed.dequantize_per_channel(@v_proj.weight_qdata, @v_proj.weight_scale, @v_proj.weight_zero_point, 0, -7, 7, i8)
  %6: f32[4, T, 2] = aten.linear(%0, %5)
  %7: f32[4, T, 3] = aten.add(%2, %4)
  return %7, %6
""",  # noqa: E501 - a golden line is as long as it is
    )


def test_miss() -> None:
    """No whole number of groups, half precision, and a constant that some pass made (means are linears too)."""
    b = GraphBuilder()
    hidden = b.hidden()
    odd = b.call(aten.linear.default, b.call(aten.slice.Tensor, hidden, 2, 0, 3), b.weight("odd.weight", 2, 3))
    half = b.call(
        aten.linear.default,
        b.call(aten.to.dtype, hidden, torch.float16),
        b.tensor("small.weight", torch.ones(2, 4, dtype=torch.float16)),
    )
    mean = b.call(aten.linear.default, hidden, b.tensor("folded.c0", torch.full((1, 4), 0.25)))
    expect(
        transcript(b.done(odd, half, mean), PASS),
        """\
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, 8, 3] = aten.slice(%0, 2, 0, 3)
  %2: f32[4, 8, 2] = aten.linear(%1, @odd.weight)
  %3: f16[4, 8, 4] = aten.to.dtype(%0, f16)
  %4: f16[4, 8, 2] = aten.linear(%3, @small.weight)
  %5: f32[4, 8, 1] = aten.linear(%0, @folded.c0)
  return %2, %4, %5
--- quantize-base: 0 hits
refused odd: its width 3 is not a multiple of group=2
refused small: its weight is torch.float16, expected f32
(same)
""",
    )


def test_hit_on_gradients() -> None:
    """Products with a transposed weight are gradients, of which no row may be zeros."""
    b = GraphBuilder()
    gradient = b.call(aten.linear.default, b.hidden(), b.weight("layer.transposed.weight", 2, 4))
    expect(
        transcript(b.done(gradient), QuantizeBase(scheme="8da4w", group=2)),
        """\
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, 8, 2] = aten.linear(%0, @layer.transposed.weight)
  return %1
--- quantize-base: 1 hits
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, 8, 4] = aten.add(%0, 1e-20)
  %2: (f32[4, 8], i8[4, 8]) = torchao.choose_qparams_affine(%1, ASYMMETRIC, [1, 1, 4], i8, -128, 127, None, None, i8)
  %3: f32[4, 8] = getitem(%2, 0)
  %4: i8[4, 8] = getitem(%2, 1)
  %5: i8[4, 8, 4] = torchao.quantize_affine(%1, [1, 1, 4], %3, %4, i8, -128, 127)
  %6: f32[4, 8, 4] = torchao.dequantize_affine(%5, [1, 1, 4], %3, %4, i8, -128, 127)
  %7: f32[2, 4] = torchao.dequantize_affine(@layer.transposed.weight_qdata, [1, 4], @layer.transposed.weight_scale, @layer.transposed.weight_zero_point, i8, -128, 127)
  %8: f32[4, 8, 2] = aten.linear(%6, %7)
  return %8
""",  # noqa: E501 - a golden line is as long as it is
    )


def test_miss_by_default() -> None:
    assert not run_pass(example(), QuantizeBase()).changed


@pytest.mark.parametrize(
    ("each", "reason"),
    [
        (QuantizeBase(scheme="fp4"), "scheme is 'fp4'; expected none, 8da8w, 8da4w, w8a16, w4a16"),
        (QuantizeBase(scheme="8da4w", group=0), "group is 0; expected at least 1"),
    ],
)
def test_failure(each: QuantizeBase, reason: str) -> None:
    with pytest.raises(PassError) as error:
        each(example())
    assert str(error.value) == f"quantize-base: cannot run: {reason}"


@pytest.mark.parametrize(("scheme", "group"), [("8da4w", 32), ("8da8w", 32)])
def test_parity_with_torchao(scheme: str, group: int) -> None:
    """The same numbers as torchao's own config for the scheme, and close to f32 as far as its bits go."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerAxis, PerGroup

    b = GraphBuilder(dynamic=True)
    program = b.done(
        b.call(aten.linear.default, b.hidden(64), b.weight("layer.weight", 8, 64), b.weight("layer.bias", 8))
    )
    layer = nn.Linear(64, 8)
    layer.load_state_dict({name: program.module.get_buffer(f"layer.{name}") for name in ("weight", "bias")})
    rows = row_inputs(program)
    exact = run(program, rows)[0]
    run_pass(program, QuantizeBase(scheme=scheme, group=group))
    is_grouped = scheme == "8da4w"
    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4 if is_grouped else torch.int8,  # type: ignore[attr-defined]
        weight_granularity=PerGroup(group) if is_grouped else PerAxis(0),
    )
    quantize_(layer, config)
    with torch.no_grad():
        theirs = layer(program.module.get_buffer("embed.weight")[rows[0]])
    ours = run(program, rows)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    error = float((ours - exact).norm() / exact.norm())
    assert (0.02 < error < 0.15) if is_grouped else (0.002 < error < 0.02)


def _by_qualcomm(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """The weight as Qualcomm's own observer rounds it; at four bits, the one that searches for the scale."""
    from executorch.backends.qualcomm.quantizer.observers.per_channel_param_observer import (
        PerChannelParamObserver,
        PerChannelParamObserverWithLossEvaluation,
    )

    highest = 2 ** (bits - 1) - 1
    observer = PerChannelParamObserver if bits == 8 else PerChannelParamObserverWithLossEvaluation
    limits = {"quant_min": -highest, "quant_max": highest, "qscheme": torch.per_channel_symmetric}
    observed = observer(ch_axis=0, dtype=torch.int8, **limits)
    observed(weight)
    scale, zero = observed.calculate_qparams()
    return torch.fake_quantize_per_channel_affine(weight, scale, zero.to(torch.int32), 0, -highest, highest)


@pytest.mark.parametrize(("bits", "at_most"), [(8, 1.0001), (4, 1.01)])
def test_weights_alone_round_as_well_as_qualcomms_observer(bits: int, at_most: float) -> None:
    """Heavy tails, and a row of zeros."""
    torch.manual_seed(0)
    weight = torch.distributions.StudentT(3.0).sample(torch.Size((64, 256)))
    weight[5] = 0
    qdata, scale, zero = rounded(weight, SCHEMES[f"w{bits}a16"])
    assert qdata.dtype == torch.int8 and int(qdata.abs().max()) == 2 ** (bits - 1) - 1
    assert not zero.any() and scale.isfinite().all() and (scale > 0).all()
    error = (qdata * scale[:, None] - weight).square().sum(dim=1)
    theirs = (_by_qualcomm(weight, bits) - weight).square().sum(dim=1)
    assert error[5] == 0
    assert (error <= theirs * 1.1).all() and float(error.sum()) <= at_most * float(theirs.sum())
