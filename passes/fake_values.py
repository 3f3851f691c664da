"""Shapes, dtypes and strides of results, each computed once for equal arguments.

Running an op on fake values with a symbolic T takes about a millisecond, nearly all of it arithmetic on sizes. The
blocks of a transformer run the same ops on the same shapes, so all but the first block find their values here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg

from prgec.errors import InternalError


class FakeValues:
    """Results of ops on fake values of one mode; equal calls return the same object.

    Args:
        mode: Mode, with its symbolic sizes, that all values belong to.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._known: dict[Hashable, Any] = {}
        # Holds each value beside its key: an id is another's as soon as its value is gone.
        self._keys: dict[int, tuple[Any, Hashable]] = {}

    def of_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake value of a tensor of fixed shape, its own: tracers take one value for one input."""
        return self._mode.from_tensor(tensor, static_shapes=True)

    def apart(self, values: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Values that look like `values`, each an object of its own, as tracers need them."""
        with self._mode:
            return [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype) for each in values]

    def of_call(self, op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of `op`; nodes among its arguments stand for their values."""
        key = (op, self._key(args), self._key(kwargs))
        if key in self._known:
            return self._known[key]
        with self._mode, torch.no_grad():
            result = op(*map_arg(args, value_of), **map_arg(kwargs, value_of))
        # A size that depends on data is a new one in every call.
        if not free_unbacked_symbols(result):
            self._known[key] = result
        return result

    def _key(self, value: Any) -> Hashable:
        """The part of an argument that decides a result's shape: a number whole, a tensor without its elements."""
        if isinstance(value, Node):
            return self._key(value_of(value))
        if isinstance(value, torch.Tensor):
            found = self._keys.get(id(value))
            if found is None:
                found = self._keys[id(value)] = value, (type(value), _layout_of(value))
            return found[1]
        if isinstance(value, list | tuple):
            return (tuple, *map(self._key, value))
        if isinstance(value, Mapping):
            return (dict, *((name, self._key(each)) for name, each in value.items()))
        # 1, 1.0 and True are equal but make other dtypes.
        return type(value), _size_key(value)


def value_of(node: Node) -> Any:
    """The fake value of a node.

    Raises:
        InternalError: If it has none.
    """
    if "val" not in node.meta:
        raise InternalError(f"node {node.name} has no value")
    return node.meta["val"]


def _layout_of(tensor: torch.Tensor) -> Hashable:
    shape, strides = (tuple(map(_size_key, sizes)) for sizes in (tensor.shape, tensor.stride()))
    return tensor.dtype, tensor.device, tensor.layout, shape, strides, _size_key(tensor.storage_offset())


def _size_key(size: Any) -> Hashable:
    key: Hashable = size.node.expr if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool) else size
    return key
