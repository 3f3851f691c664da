"""Which blocks of a model to train: `all`, `last:K`, or indices and ranges such as `0,4-7`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prgec.errors import UsageError

ALL_LAYERS = "all"

_LAST = re.compile(r"last:(\d+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_HINT = "write all, last:K, or indices and ranges such as 0,4-7"


def chosen(names: Sequence[str], layers: Sequence[str]) -> list[str]:
    """Return the module paths of `names` that lie in the chosen blocks, in their order.

    The block of a path is the first number in it: `model.layers.3.mlp.up_proj` is in block 3. Paths without a number
    are in no block, so only `all` keeps them.

    Args:
        names: Module paths of the candidate layers.
        layers: Parts of the choice: `("all",)`, `("last:6",)`, `("0", "4-7")`.

    Raises:
        UsageError: If the choice cannot be read, or names a block the model does not have.
    """
    if tuple(layers) == (ALL_LAYERS,):
        return list(names)
    blocks = sorted({block for name in names if (block := block_of(name)) is not None})
    wanted = {block for part in layers for block in _blocks(part, blocks)}
    unknown = sorted(wanted - set(blocks))
    if unknown:
        raise UsageError(f"there is no layer {unknown[0]}", hint=f"the model has layers 0 to {blocks[-1]}")
    return [name for name in names if block_of(name) in wanted]


def block_of(name: str) -> int | None:
    """Index of the block a module path lies in; None outside all blocks."""
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def _blocks(part: str, blocks: Sequence[int]) -> Sequence[int]:
    if last := _LAST.fullmatch(part):
        count = int(last[1])
        if not 1 <= count <= len(blocks):
            raise UsageError(f"layers {part} does not fit a model of {len(blocks)} layers", hint=_HINT)
        return blocks[-count:]
    bounds = _RANGE.fullmatch(part)
    if bounds is None:
        raise UsageError(f"layers {part!r} is not a choice of layers", hint=_HINT)
    first, end = int(bounds[1]), int(bounds[2] or bounds[1])
    if end < first:
        raise UsageError(f"layers {part!r} ends before it begins", hint=_HINT)
    return range(first, end + 1)
