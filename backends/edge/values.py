"""Fake values of nodes, computed once for each op, dtype and shape.

A transformer repeats one block, so almost every value of a graph has been computed before. A fake result with a
symbolic T costs milliseconds; a look-up costs microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.fx.node import map_arg


class Values:
    """Fake results that belong to one mode.

    Args:
        mode: Mode, and with it the symbolic shapes, of the graph.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._contiguous: dict[Hashable, torch.Tensor] = {}
        self._results: dict[Hashable, Any] = {}

    def contiguous(self, value: Any) -> Any:
        """Return `value` with every tensor in it replaced by a contiguous one of the same shape and dtype."""
        if isinstance(value, tuple | list):
            return type(value)(self.contiguous(part) for part in value)
        if not isinstance(value, torch.Tensor):
            return value
        key = (value.dtype, _sizes(value.shape))
        if key not in self._contiguous:
            with self.mode:
                self._contiguous[key] = torch.empty(tuple(value.shape), dtype=value.dtype)
        return self._contiguous[key]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake value of a tensor with data, contiguous whatever its strides are."""
        value: torch.Tensor = self.contiguous(tensor)
        return value

    def result(self, op: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return what `op` gives for the values of its arguments, which may hold nodes."""
        key = (op, _key(args), _key(kwargs))
        if key not in self._results:
            with self.mode, torch.no_grad():
                self._results[key] = op(*map_arg(args, _value), **map_arg(kwargs, _value))
        return self._results[key]


def _value(node: Node) -> Any:
    return node.meta["val"]


def _key(argument: Any) -> Hashable:
    """Key of an argument: everything about it that a result may depend on."""
    if isinstance(argument, Node):
        return _key(argument.meta["val"])
    if isinstance(argument, torch.Tensor):
        return (argument.dtype, _sizes(argument.shape), _sizes(argument.stride()))
    if isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool):
        expression: Hashable = argument.node.expr
        return expression
    if isinstance(argument, list | tuple):
        return tuple(map(_key, argument))
    if isinstance(argument, dict):
        return tuple((name, _key(value)) for name, value in argument.items())
    # 1, 1.0 and True are equal, and give results of different dtypes.
    return (type(argument), argument)


def _sizes(sizes: Any) -> Hashable:
    return tuple(size if isinstance(size, int) else size.node.expr for size in sizes)
