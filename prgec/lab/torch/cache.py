"""Keys and values of what a program has read, as `extend` takes and returns them.

Letters: H key heads, C positions at most, d width of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from prgec.core.contract.names import CACHE_CODES
from prgec.passes.program import GraphProgram

# Least size of an axis that varies.
_LEAST_SIZE = 2


class KeyValueCache:
    """Keys and values of every layer, with room for C positions.

    Args:
        method: `extend`, or None where a program has none.
        context: C.
        device: Where to keep them.
    """

    def __init__(self, method: GraphProgram | None, context: int, device: torch.device) -> None:
        placeholders = [] if method is None else method.placeholders()
        found = {str(each.target): each.meta["val"] for each in placeholders if each.meta["val"].ndim == 3}
        self._tensors = {
            name: torch.zeros(each.shape[0], context, each.shape[2], dtype=each.dtype, device=device)
            for name, each in found.items()
        }

    def inputs(self, start: int) -> Mapping[str, Tensor]:
        """Inputs of a call that reads tokens from position `start` on, by name."""
        room = max(_LEAST_SIZE, start)
        return {name: each[:, :room] for name, each in self._tensors.items()}

    def write(self, new: Sequence[Tensor], start: int) -> None:
        """Keep what a call returned of its T tokens: f32[H, T, d] of every layer's keys and values."""
        kept, places = iter(self._tensors.values()), slice(start, start + new[0].shape[1])
        for fresh in new:
            each = next(kept)
            if each.dtype == torch.int8:
                codes, scale = _quantize(fresh)
                each[:, places] = codes
                next(kept)[:, places] = scale
            else:
                each[:, places] = fresh

    def clear(self) -> None:
        """Forget everything."""
        for each in self._tensors.values():
            each.zero_()


def _quantize(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Codes i8[H, T, d] of f32[H, T, d], and the scale of every row of them, f32[H, T, 1]."""
    scale = numbers.abs().amax(-1, keepdim=True) / CACHE_CODES
    codes = torch.round(numbers / torch.where(scale == 0, 1.0, scale))
    return codes.to(torch.int8), scale
