"""Runs a graph to the same bits on every processor: products are exact, and all between them is f64.

Between two products, a norm or a softmax differs by a few parts in 1e16 from processor to processor. The next product
rounds its factors to one part in 2^18, which takes the difference away, but for a value on the border of two: one in
1e10.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter
from torch.utils._pytree import tree_map_only

from prgec.passes.fixed_point import product

aten = torch.ops.aten


class ExactRun(Interpreter):
    """An interpreter of graphs before lowering."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op."""
        if target is aten.embedding.default:
            return super().call_function(target, args, kwargs)
        if target is aten.to.dtype and args[0].is_floating_point() and args[1].is_floating_point:
            return _wide(args[0])
        args, kwargs = (tree_map_only(Tensor, _wide, each) for each in (args, kwargs))
        exact = _OPS.get(target)
        return exact(*args, **kwargs) if exact is not None else super().call_function(target, args, kwargs)


def _wide(value: Tensor) -> Tensor:
    return value.to(torch.float64) if value.is_floating_point() else value


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = product(x, weight)
    return y if bias is None else y + bias


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return product(a, b.transpose(-1, -2))


def _addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return bias + _matmul(a, b)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as PyTorch defines it, of heads that were repeated already."""
    assert dropout_p == 0.0 and not enable_gqa, "a model in evaluation mode repeats its heads and drops nothing"
    scores = product(q, k) * (1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        bias = attn_mask if attn_mask.is_floating_point() else torch.zeros_like(attn_mask, dtype=torch.float64)
        scores = scores + (bias if bias is attn_mask else bias.masked_fill(~attn_mask, -torch.inf))
    return _matmul(torch.softmax(scores, -1), v)


def _view(x: Tensor, sizes: list[int]) -> Tensor:
    """Values in another shape, in whatever order the op before left them."""
    return x.reshape(sizes)


_OPS: dict[Any, Callable[..., Tensor]] = {
    aten.view.default: _view,
    aten.linear.default: _linear,
    aten.matmul.default: _matmul,
    aten.bmm.default: _matmul,
    aten.addmm.default: _addmm,
    aten.scaled_dot_product_attention.default: _attention,
}
