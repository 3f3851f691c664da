"""Runs a graph to the same bits on every processor: products are exact, and all between them is f64.

Between two products, a norm or a softmax differs by a few parts in 1e16 from processor to processor. The next product
rounds its factors to one part in 2^18, which takes the difference away, but for a value on the border of two: one in
1e10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_map_only

from prgec.passes.fixed_point import RIGHT_BITS, product, product_with, whole_numbers

aten = torch.ops.aten


class ExactRun(Interpreter):
    """An interpreter of graphs before lowering, of several sets of inputs at once.

    Each op runs for all sets before the next one does, so that a weight is rounded once for all of them.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self._last: tuple[Tensor, Tensor, Tensor] | None = None

    def together(self, inputs: Sequence[Sequence[Tensor]], last: Node | None = None) -> Iterator[tuple[Node, int, Any]]:
        """Run the graph over every set of inputs, and yield each node's values: the node, the place of the set, it.

        Args:
            inputs: Sets of arguments of the graph.
            last: The last node to run; None for the whole graph.
        """
        states: list[tuple[dict[Node, Any], Iterator[Tensor]]] = [({}, iter(each)) for each in inputs]
        for node in self.graph.nodes:
            for place, (self.env, self.args_iter) in enumerate(states):
                self.env[node] = self.run_node(node)
                yield node, place, self.env[node]
                for unused in self.user_to_last_uses.get(node, ()):
                    del self.env[unused]
            if node is last:
                return

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op."""
        if target is aten.embedding.default:
            return super().call_function(target, args, kwargs)
        if target is aten.to.dtype and args[0].is_floating_point() and args[1].is_floating_point:
            return _wide(args[0])
        if target is aten.linear.default and isinstance(args[1], Tensor) and not args[1].requires_grad:
            return self._linear(*args, **kwargs)
        args, kwargs = (tree_map_only(Tensor, _wide, each) for each in (args, kwargs))
        exact = _OPS.get(target)
        return exact(*args, **kwargs) if exact is not None else super().call_function(target, args, kwargs)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = product_with(_wide(x), *self._whole(weight))
        return y if bias is None else y + _wide(bias)

    def _whole(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Whole numbers of a weight, and their exponents; those of the last weight are kept."""
        if self._last is None or self._last[0] is not weight:
            self._last = weight, *whole_numbers(weight, RIGHT_BITS)
        return self._last[1:]


def _wide(value: Tensor) -> Tensor:
    return value.to(torch.float64) if value.is_floating_point() else value


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
        is_choice = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if is_choice else scores + attn_mask
    return _matmul(torch.softmax(scores, -1), v)


def _view(x: Tensor, sizes: list[int]) -> Tensor:
    """Values in another shape, in whatever order the op before left them."""
    return x.reshape(sizes)


_OPS: dict[Any, Callable[..., Tensor]] = {
    aten.view.default: _view,
    aten.matmul.default: _matmul,
    aten.bmm.default: _matmul,
    aten.addmm.default: _addmm,
    aten.scaled_dot_product_attention.default: _attention,
}
