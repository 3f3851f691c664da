"""Rounding that makes up for itself, against the published method column by column: no blocks, no Cholesky factor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from prgec.errors import PassError
from prgec.passes.gptq import correction_of, rounded_for
from prgec.passes.quantize_base import QuantizeBase
from prgec.passes.weights import SCHEMES, Scheme, quantized
from tests.passes.builder import GraphBuilder
from tests.passes.golden import run_pass
from tests.passes.test_quantize_base import example

aten = torch.ops.aten

WIDTH, GROUP = 320, 32


def _inputs(num: int = 400) -> Tensor:
    """Inputs as models have them: correlated, some columns far larger than others."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(WIDTH // 4, WIDTH, generator=generator)
    return torch.randn(num, WIDTH // 4, generator=generator) @ mixing * torch.logspace(-0.5, 0.5, WIDTH)


def _weight(num_outputs: int = 24) -> Tensor:
    return torch.randn(num_outputs, WIDTH, generator=torch.Generator().manual_seed(9))


def _textbook(weight: Tensor, inputs: Tensor, scales: Tensor, scheme: Scheme, group: int) -> Tensor:
    """Equations 2 and 3 of the paper with the inverse brought up to date after each column, in f64."""
    x, w = inputs.double(), weight.double().clone()
    gram = x.T @ x
    inverse = torch.linalg.inv(gram + 0.01 * gram.diagonal().mean() * torch.eye(len(gram)))
    values = torch.empty_like(w)
    for d in range(w.shape[1]):
        scale = scales[:, d // group].double()
        values[:, d] = (w[:, d] / scale).round().clamp(scheme.minimum, scheme.maximum)
        error = (w[:, d] - values[:, d] * scale) / inverse[d, d]
        w[:, d + 1 :] -= torch.outer(error, inverse[d, d + 1 :])
        inverse = inverse - torch.outer(inverse[:, d], inverse[d]) / inverse[d, d]
    return values


@pytest.mark.parametrize(("scheme", "group"), [("8da4w", GROUP), ("8da8w", WIDTH), ("w4a16", WIDTH), ("8da4w", 80)])
def test_follows_the_published_method(scheme: str, group: int) -> None:
    weight, inputs, row = _weight(), _inputs(), SCHEMES[scheme]
    values, scales = rounded_for(weight, correction_of(inputs), row, group)
    assert values.dtype == torch.int8 and scales.shape == (len(weight), WIDTH // group)
    expected = _textbook(weight, inputs, scales, row, group)
    # f32 beside f64: a value half way between two may fall either way, and takes some of its row with it.
    assert (values != expected).double().mean() < 0.02


def test_outputs_change_less_than_by_nearest_values() -> None:
    """Half the squared error, on inputs that were not looked at."""
    weight, scheme = _weight(), SCHEMES["8da4w"]
    looked_at, other = _inputs(800).chunk(2)
    values, scales = rounded_for(weight, correction_of(looked_at), scheme, GROUP)
    near, near_scales, _ = quantized(weight, scheme, [1, GROUP])

    def error(values: Tensor, scales: Tensor) -> float:
        rounded = values * scales.repeat_interleave(GROUP, 1)
        return float((other @ (rounded - weight).T).square().mean())

    assert error(values, scales) < error(near, near_scales) / 2


def test_scales_are_those_a_delegate_holds() -> None:
    _, scales = rounded_for(_weight(), correction_of(_inputs()), SCHEMES["8da4w"], GROUP)
    assert torch.equal(scales, scales.bfloat16().float()) and (scales > 0).all()


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_inputs_or_weights_of_nothing(value: float) -> None:
    """Zeros are zeros afterwards, whatever was read; and inputs of zero leave plain rounding."""
    values, scales = rounded_for(torch.zeros(3, WIDTH), correction_of(value * _inputs()), SCHEMES["8da4w"], GROUP)
    assert not values.any() and torch.isfinite(scales).all()
    values, scales = rounded_for(_weight(), correction_of(torch.zeros(5, WIDTH)), SCHEMES["8da4w"], GROUP)
    assert (values * scales.repeat_interleave(GROUP, 1) - _weight()).abs().max() < 0.5


def test_a_layer_nobody_looked_at_is_rounded_for_itself() -> None:
    program, nearest = example(), example()
    program.activations = {"v_proj": torch.randn(10, 4, generator=torch.Generator().manual_seed(1))}
    run_pass(program, QuantizeBase(scheme="8da4w", group=2, rounding="gptq"))
    run_pass(nearest, QuantizeBase(scheme="8da4w", group=2))
    found, plain = (dict(each.module.named_buffers()) for each in (program, nearest))
    assert torch.equal(found["q_proj.weight_qdata"], plain["q_proj.weight_qdata"])
    assert not torch.equal(found["v_proj.weight_scale"], plain["v_proj.weight_scale"])


def test_needs_readings() -> None:
    with pytest.raises(PassError, match="needs what layers read"):
        run_pass(example(), QuantizeBase(scheme="8da4w", group=2, rounding="gptq"))


def test_a_transposed_copy_is_made_of_what_the_forward_multiplies_with() -> None:
    """In 8 bits, it is the forward's weight again to half a step; the f32 weight is further away."""
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    b = GraphBuilder(dynamic=True)
    hidden = b.hidden()
    forward = b.call(aten.linear.default, hidden, b.weight("q_proj.weight", 4, 4))
    program = b.done(b.call(aten.linear.default, forward, b.weight("q_proj.transposed.weight", 4, 4)))
    program.module.q_proj.weight.data = weight
    program.module.q_proj.transposed.weight.data = weight.t().contiguous()
    run_pass(program, QuantizeBase(scheme="8da4w", group=2))
    found = dict(program.module.named_buffers())

    def exact(name: str, group: int) -> Tensor:
        return found[f"{name}.weight_qdata"] * found[f"{name}.weight_scale"].repeat_interleave(group, 1)

    copy, half_step = exact("q_proj.transposed", 4), found["q_proj.transposed.weight_scale"] / 2
    assert half_step.max() < 0.01 * weight.abs().max()
    assert ((copy - exact("q_proj", 2).t()).abs() <= 1.001 * half_step).all()
    assert (copy - weight.t()).abs().max() > 5 * half_step.max()
