"""Recurrences and experts as products, beside the functions of transformers that they stand for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from prgec.compiler.frontend.experts import dense_experts
from prgec.compiler.frontend.scans import causal_conv1d, exportable, gated_delta_rule, mamba2_scan
from tests.families import EXPERTS, family
from tests.models import VOCAB_SIZE

LONGEST = 150


@pytest.fixture(autouse=True)
def _one_seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield


@pytest.mark.parametrize("length", [1, 2, 3, 9])
@pytest.mark.parametrize(("has_bias", "activation"), [(False, None), (True, "silu")])
def test_convolution(length: int, has_bias: bool, activation: str | None) -> None:
    from transformers.models.lfm2.modeling_lfm2 import causal_conv1d_fn

    x, weight, bias = torch.randn(2, 5, length), torch.randn(5, 4), torch.randn(5) if has_bias else None
    expected = causal_conv1d_fn(x, weight, bias, activation=activation)
    torch.testing.assert_close(causal_conv1d(x, weight, bias, activation=activation), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [1, 4, 5, 11])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("limits", [(0.0, math.inf), (0.2, 0.9)])
def test_state_space_layer(length: int, groups: int, limits: tuple[float, float]) -> None:
    """Chunks of 4 in transformers; one chunk here."""
    from transformers.models.granitemoehybrid.modeling_granitemoehybrid import mamba2_chunk_scan

    x, dt = torch.randn(2, length, 6, 3), torch.randn(2, length, 6)
    b, c = torch.randn(2, length, groups, 5), torch.randn(2, length, groups, 5)
    rate, skip, bias = -torch.rand(6) - 0.1, torch.randn(6), torch.randn(6)
    given: dict[str, Any] = {"D": skip, "dt_bias": bias, "dt_softplus": True, "dt_limit": limits}
    expected = mamba2_chunk_scan(x, dt, rate, b, c, chunk_size=4, **given)
    torch.testing.assert_close(mamba2_scan(x, dt, rate, b, c, chunk_size=4, **given), expected, rtol=1e-4, atol=1e-5)


def test_a_strong_decay_does_not_overflow() -> None:
    """The sums of logarithms are far apart: the exponential of those above the diagonal would be infinite."""
    x, dt = torch.randn(1, 9, 2, 3), torch.full((1, 9, 2), 100.0)
    b = c = torch.ones(1, 9, 1, 2)
    found = mamba2_scan(x, dt, torch.tensor([-5.0, -9.0]), b, c)
    torch.testing.assert_close(found, 2 * 100.0 * x)


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, LONGEST])
@pytest.mark.parametrize("groups", [2, 4])
def test_gated_delta_rule(length: int, groups: int) -> None:
    expected, found = _delta_rules(length, torch.randn(2, length, groups, 6), torch.rand(2, length, 4))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_gated_delta_rule_of_one_token_again_and_again() -> None:
    """Equal keys that are corrected whole: powers of the system would grow to 2^n and cancel."""
    key = torch.randn(1, 1, 4, 6).expand(2, LONGEST, 4, 6)
    expected, found = _delta_rules(LONGEST, key, torch.ones(2, LONGEST, 4))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def _delta_rules(length: int, key: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

    query, value = torch.randn_like(key), torch.randn(2, length, 4, 5)
    g = -0.1 * torch.rand(2, length, 4)
    # The recurrence itself, one token after the other, in f64.
    given = [each.double() for each in (query, key, value, g, beta)]
    expected, _ = torch_recurrent_gated_delta_rule(*given, None, False, use_qk_l2norm_in_kernel=True)
    found, state = gated_delta_rule(LONGEST)(query, key, value, g=g, beta=beta, use_qk_l2norm_in_kernel=True)
    assert state is None
    return expected.to(torch.float32), found


@pytest.mark.parametrize("each", EXPERTS, ids=lambda each: each.model_type)
def test_experts(each: Any) -> None:
    model = each.build()
    tokens = torch.randint(3, VOCAB_SIZE, (2, 7))
    with torch.no_grad():
        expected = model(input_ids=tokens, use_cache=False).logits
        with exportable(model, 7):
            found = model(input_ids=tokens, use_cache=False).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_weights_of_experts_have_names_and_no_memory_of_their_own() -> None:
    model = family("Qwen3 MoE").build()
    before = set(model.state_dict())
    with dense_experts(model):
        experts: Any = model.get_submodule("model.layers.0.mlp.experts")
        layer: Any = model.get_submodule("model.layers.0.mlp.experts.2.down_proj")
        assert layer.weight.data_ptr() == experts.down_proj[2].data_ptr()
    assert set(model.state_dict()) == before


def test_transformers_is_as_it_was_after_a_failure() -> None:
    from transformers.models.qwen3_next import modeling_qwen3_next as module

    model = family("Qwen3-Next").build()
    before = dict(vars(module))
    implementation = model.config._experts_implementation  # type: ignore[union-attr]
    with pytest.raises(ZeroDivisionError), exportable(model, 4):
        assert module.causal_conv1d_fn is causal_conv1d
        raise ZeroDivisionError
    assert dict(vars(module)) == before
    assert model.config._experts_implementation == implementation  # type: ignore[union-attr]
