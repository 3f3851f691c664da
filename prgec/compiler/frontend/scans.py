"""Recurrences over tokens as matrix products that hold for any T.

transformers computes convolutions over time and recurrent layers chunk by chunk. The number of chunks depends on T,
so a trace of it serves one T alone. Each function here takes the arguments of one of transformers', which the same
name finds in the module of every model that has such layers, and computes the same in one chunk of T tokens. All of
it is products, and products have a derivative and run in a delegate. A step costs T times T for a head, as attention
does.

Letters: N rows, T tokens, D channels, H heads, G groups of heads, S width of a state or key, P width of a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import modules
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from prgec.compiler.frontend.experts import dense_experts


def causal_conv1d(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
) -> Tensor:
    """Convolve every channel with its own few weights over the tokens up to each.

    Args:
        hidden_states: f32[N, D, T].
        weight: f32[D, taps]; the last tap weighs the token itself.
        bias: f32[D].
        activation: Name of an activation that follows.

    Returns:
        f32[N, D, T].
    """
    from transformers.activations import ACT2FN

    rows, channels, length = hidden_states.shape
    flat = hidden_states.reshape(1, rows * channels, -1)
    taps = weight.shape[-1]
    out = hidden_states * weight[:, -1:]
    for back in range(1, taps):
        earlier = torch.bmm(flat, _shift(length, back).unsqueeze(0)).view(rows, channels, -1)
        out = out + earlier * weight[:, taps - 1 - back].unsqueeze(-1)
    if bias is not None:
        out = out + bias.unsqueeze(-1)
    return out if activation is None else ACT2FN[activation](out)


def mamba2_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803  # the names of transformers' arguments
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    **_: Any,
) -> Tensor:
    """Compute a state space layer as masked attention: `y_t = sum_s<=t (C_t B_s) exp(a_s+1 + ... + a_t) dt_s x_s`.

    Source: Dao and Gu, "Transformers are SSMs", section 3.2 (the quadratic form of a scalar state space layer).

    Args:
        hidden_states: f32[N, T, H, P].
        dt: f32[N, T, H], step sizes.
        A: f32[H], a negative rate a head.
        B: f32[N, T, G, S].
        C: f32[N, T, G, S].
        D: f32[H], what passes by.
        dt_bias: f32[H].
        dt_softplus: Whether step sizes go through a softplus.
        dt_limit: Least and largest step size.

    Returns:
        f32[N, T, H, P].
    """
    rows, heads, width = hidden_states.shape[0], *hidden_states.shape[2:]
    if dt_bias is not None:
        dt = dt + dt_bias
    if dt_softplus:
        dt = functional.softplus(dt)
    if tuple(dt_limit) != (0.0, math.inf):
        dt = torch.clamp(dt, *dt_limit)
    decay = _decay((A * dt).transpose(1, 2))
    scores = torch.bmm(_by_head(C, heads), _by_head(B, heads).transpose(1, 2)) * decay
    y = torch.bmm(scores, _by_head(hidden_states * dt.unsqueeze(-1), heads))
    y = y.view(rows, heads, -1, width).transpose(1, 2)
    # Callers view it in other sizes.
    return (y if D is None else y + D.unsqueeze(-1) * hidden_states).contiguous()


def gated_delta_rule(longest: int) -> Callable[..., tuple[Tensor, None]]:
    """Return the gated delta rule for up to `longest` tokens.

    Every token corrects what the state predicts for its key, so new values depend on each other. They solve a
    triangular system, whose inverse is put together from blocks of 1, 2, 4, ... tokens.

    Source: Yang et al., "Gated Delta Networks", section 3.3 (the chunkwise form, of one chunk).
    """
    levels = max(1, math.ceil(math.log2(longest)))

    def rule(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Compute the layer.

        Args:
            query: f32[N, T, G, S].
            key: f32[N, T, G, S].
            value: f32[N, T, H, P].
            g: f32[N, T, H], logarithms of the decay.
            beta: f32[N, T, H], how far a token corrects.
            use_qk_l2norm_in_kernel: Whether queries and keys are normalised first.

        Returns:
            f32[N, T, H, P], and no state.
        """
        rows, length, heads, width = value.shape
        if use_qk_l2norm_in_kernel:
            query, key = _normalised(query), _normalised(key)
        queries = _by_head(query * query.shape[-1] ** -0.5, heads)
        keys_T = _by_head(key, heads).transpose(1, 2)
        rates = beta.transpose(1, 2).reshape(rows * heads, -1, 1)
        decay = _decay(g.transpose(1, 2))
        system = torch.bmm(_by_head(key, heads) * rates, keys_T) * decay
        solved = _inverse_of_unit_lower(system, length, levels)
        new_values = torch.bmm(solved, _by_head(value, heads) * rates)
        out = torch.bmm(torch.bmm(queries, keys_T) * decay, new_values)
        return out.view(rows, heads, -1, width).transpose(1, 2), None

    return rule


def _inverse_of_unit_lower(system: Tensor, length: int, levels: int) -> Tensor:
    """The inverse of a unit lower triangular matrix [N*H, T, T] of which `system` holds what is under the diagonal.

    With the inverses X and Y of two neighbouring blocks, that of both together has `-Y C X` in its corner. All pairs
    of one size are done at once.
    """
    at = torch.arange(length)
    inverse = torch.eq(at.unsqueeze(1), at).to(torch.float32).unsqueeze(0) - system * _corners(at, 1)
    for level in range(1, levels):
        corner = torch.bmm(inverse, system * _corners(at, 1 << level))
        inverse = inverse - torch.bmm(corner, inverse)
    return inverse


def _corners(at: Tensor, size: int) -> Tensor:
    """1 where a row lies in the second and a column in the first of two blocks of `size`: f32[1, T, T]."""
    row, column = at.unsqueeze(1) // size, at // size
    return ((row == column + 1) & (row % 2 == 1)).to(torch.float32).unsqueeze(0)


def _shift(length: int, back: int) -> Tensor:
    """The matrix that moves a row of tokens `back` places on: f32[T, T]."""
    at = torch.arange(length)
    return torch.eq(at.unsqueeze(1) + back, at).to(torch.float32)


def _decay(rates: Tensor) -> Tensor:
    """`exp(a_s+1 + ... + a_t)` for s <= t, else 0: f32[N*H, T, T] of the logarithms a, f32[N, H, T].

    The differences of sums are a product of two columns, since a derivative can sum over T by products alone. They are
    masked before the exponential, where those above the diagonal could overflow, and after it.
    """
    rows, heads, length = rates.shape
    at = torch.arange(length)
    until = torch.le(at.unsqueeze(1), at).to(torch.float32).unsqueeze(0)
    sums = torch.bmm(rates.reshape(1, rows * heads, -1), until).view(rows * heads, -1, 1)
    left = sums * torch.tensor([1.0, 0.0]) + torch.tensor([0.0, 1.0])
    right = sums * torch.tensor([0.0, -1.0]) + torch.tensor([1.0, 0.0])
    seen = torch.le(at, at.unsqueeze(1)).to(torch.float32).unsqueeze(0)
    return torch.exp(torch.bmm(left, right.transpose(1, 2)) * seen) * seen


def _by_head(values: Tensor, heads: int) -> Tensor:
    """Values of heads, or of groups that heads share, one matrix a head: f32[N*H, T, S] of f32[N, T, G, S].

    A product with ones repeats a group for its heads; no delegate expands.
    """
    rows, _, groups, width = values.shape
    values = values.transpose(1, 2)
    if groups != heads:
        values = values.reshape(rows, groups, 1, -1, width) * torch.ones(heads // groups, 1, 1)
    return values.reshape(rows * heads, -1, width)


def _normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) * x.shape[-1] + 1e-6)


@contextmanager
def exportable(model: nn.Module, longest: int) -> Iterator[None]:
    """Let a model of transformers compute with the functions of this module.

    Args:
        model: Any model; one without such layers stays as it is.
        longest: Largest T it will see.
    """
    forms: dict[str, Callable[..., Any]] = {
        "causal_conv1d_fn": causal_conv1d,
        "mamba2_chunk_scan": mamba2_scan,
        "torch_chunk_gated_delta_rule": gated_delta_rule(longest),
    }
    replaced: list[tuple[Any, str, Any]] = []
    with dense_experts(model):
        try:
            for module in {modules[type(each).__module__] for each in model.modules()}:
                for name in forms.keys() & vars(module).keys():
                    replaced.append((module, name, getattr(module, name)))
                    setattr(module, name, forms[name])
            yield
        finally:
            for module, name, function in replaced:
                setattr(module, name, function)
