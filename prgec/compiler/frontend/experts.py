"""Mixtures of experts with every expert computing every token.

transformers sends each token to its few experts, and how many tokens an expert gets depends on the data. A graph of
fixed shape computes all experts for all tokens and weighs their results, with zero for those that a token was not sent
to. The result is the same. It costs as many times more as there are experts to each one chosen.

Letters: n tokens of all rows, D width of the model, F width of an expert, E experts, k chosen for a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_NAME = "prgec_dense"


def all_experts(experts: Any, hidden_states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of all experts' results, f32[n, D].

    Args:
        experts: Module of transformers that holds the weights of all experts, one after the other.
        hidden_states: f32[n, D].
        chosen: i64[n, k], experts of each token.
        weights: f32[n, k], their weights.
    """
    share_nE = _shares(chosen, weights, int(experts.num_experts))
    total: Tensor | None = None
    for number in range(int(experts.num_experts)):
        result = _one_expert(experts, number, hidden_states) * share_nE[:, number : number + 1]
        total = result if total is None else total + result
    assert total is not None
    return total


def _shares(chosen: Tensor, weights: Tensor, count: int) -> Tensor:
    """The weight of every expert for every token, f32[n, E]."""
    numbers = torch.arange(count)
    total: Tensor | None = None
    for place in range(chosen.shape[-1]):
        is_chosen = torch.eq(chosen[:, place : place + 1], numbers).to(torch.float32)
        share = is_chosen * weights[:, place : place + 1]
        total = share if total is None else total + share
    assert total is not None
    return total


def _one_expert(experts: Any, number: int, hidden_states: Tensor) -> Tensor:
    first = "gate_up_proj" if experts.has_gate else "up_proj"
    middle = _layer(experts, first, number, hidden_states)
    middle = experts._apply_gate(middle) if experts.has_gate else experts.act_fn(middle)
    result = _layer(experts, "down_proj", number, middle)
    return experts.post_expert_norm(result) if experts.has_post_expert_norm else result


def _layer(experts: Any, name: str, number: int, x: Tensor) -> Tensor:
    """One layer of one expert: a call of its own, for `all-linear` to leave experts out."""
    layer = experts.get_submodule(f"{number}.{name}")
    return functional.linear(x, layer.weight, layer.bias)


@contextmanager
def dense_experts(model: nn.Module) -> Iterator[None]:
    """Let the experts of a model compute every token; a model without experts stays as it is.

    The weights of an expert get names like those of any layer, `<experts>.<number>.down_proj.weight`.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(_NAME, all_experts)
    found: list[Any] = [each for each in model.modules() if hasattr(each, "_apply_gate")]
    before = [each.config._experts_implementation for each in found]
    try:
        for each in found:
            each.config._experts_implementation = _NAME
            for number in range(int(each.num_experts)):
                each.add_module(str(number), _expert(each, number))
        yield
    finally:
        for each, implementation in zip(found, before, strict=True):
            each.config._experts_implementation = implementation
            for number in range(int(each.num_experts)):
                delattr(each, str(number))


def _expert(experts: Any, number: int) -> nn.Module:
    """The layers of one expert; their weights share the memory of all experts'."""
    expert = nn.Module()
    for name in ("gate_up_proj" if experts.has_gate else "up_proj", "down_proj"):
        layer: Any = nn.Module()
        weight = getattr(experts, name)[number]
        layer.weight = nn.Parameter(weight.t() if experts.is_transposed else weight, requires_grad=False)
        bias = getattr(experts, f"{name}_bias")[number] if experts.has_bias else None
        layer.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        expert.add_module(name, layer)
    return expert
