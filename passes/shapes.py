"""Questions about shapes that never specialise a symbolic T."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

Size = int | torch.SymInt


def shape_of(node: Node) -> tuple[Size, ...]:
    """Shape of a tensor node; sizes that depend on T are symbolic."""
    return tuple(node.meta["val"].shape)


def dtype_of(node: Node) -> torch.dtype:
    """Dtype of a tensor node."""
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def is_tensor(node: object) -> bool:
    """Whether a node's value is one tensor."""
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def is_same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are equal for every T."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(statically_known_true(a == b))


def is_same_shape(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether two shapes are equal for every T."""
    return len(a) == len(b) and all(is_same_size(x, y) for x, y in zip(a, b, strict=True))


def largest(size: Size) -> int:
    """A size, or the most it may be."""
    return size if isinstance(size, int) else int(size.node.shape_env.bound_sympy(size.node.expr).upper)


def dynamic_dims(node: Node) -> list[int]:
    """Dimensions whose size depends on T."""
    return [d for d, size in enumerate(shape_of(node)) if not isinstance(size, int)]


def view_sizes(shape: Sequence[Size]) -> list[int] | None:
    """Sizes for a view to `shape`: the one dynamic size becomes -1; None where there are two."""
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    return sizes if sizes.count(-1) <= 1 else None


def multiple_of(size: Size, unit: Size) -> int | None:
    """How many times `unit` a size is, whatever T is; None where that is not a whole number."""
    if isinstance(size, int) or isinstance(unit, int):
        return size // unit if isinstance(size, int) and isinstance(unit, int) and size % unit == 0 else None
    ratio = size.node.expr / unit.node.expr
    return int(ratio) if ratio.is_Integer else None
