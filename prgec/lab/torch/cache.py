"""Keys and values of what a program has read, as `extend` takes and returns them.

Letters: H key heads, C positions at most, d width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prgec.core.contract.arrays import FloatArray, IntArray
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import CACHE_CODES, DECODE_METHOD, EXTEND_METHOD
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

    @property
    def tensors(self) -> Collection[Tensor]:
        """The parts of the cache, in the order of the inputs."""
        return self._tensors.values()

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


class RowCaches(KeyValueCache):
    """Keys and values of R texts, as `decode` takes and returns them.

    Args:
        method: `decode`, or None where a program has none.
        manifest: The program's.
        device: Where to keep them.
    """

    def __init__(self, method: GraphProgram | None, manifest: Manifest, device: torch.device) -> None:
        super().__init__(method, manifest.context, device)
        self._rows = manifest.rollouts

    def fork(self, source: KeyValueCache, row: int, count: int) -> None:
        """Let a text be the first `count` positions of another cache."""
        for each, its in zip(self._tensors.values(), source.tensors, strict=True):
            self._by_row(each)[row] = 0
            self._by_row(each)[row, :, :count] = its[:, :count]

    def write_rows(self, new: Sequence[Tensor], starts_R: IntArray) -> None:
        """Keep what a call returned of one token of each text: f32[R*H, 1, d] of every layer's keys and values."""
        kept, rows, starts = iter(self._tensors.values()), range(self._rows), starts_R.tolist()
        for fresh in new:
            each = next(kept)
            parts = [(each, fresh)]
            if each.dtype == torch.int8:
                codes, scale = _quantize(fresh)
                parts = [(each, codes), (next(kept), scale)]
            for to, entries in parts:
                self._by_row(to)[rows, :, starts] = self._by_row(entries)[:, :, 0]

    def _by_row(self, tensor: Tensor) -> Tensor:
        """Show f32[R*H, n, d] as f32[R, H, n, d]."""
        return tensor.view(self._rows, -1, *tensor.shape[1:])


def _quantize(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Codes i8[H, T, d] of f32[H, T, d], and the scale of every row of them, f32[H, T, 1]."""
    scale = numbers.abs().amax(-1, keepdim=True) / CACHE_CODES
    codes = torch.round(numbers / torch.where(scale == 0, 1.0, scale))
    return codes.to(torch.int8), scale


class TorchTextCache:
    """Texts that `extend` and `decode` have read.

    Args:
        methods: Graphs of a program by name.
        manifest: The program's.
        device: Where to keep keys and values.
        call: Runs a method of that name on inputs by name.
    """

    def __init__(
        self,
        methods: Mapping[str, GraphProgram],
        manifest: Manifest,
        device: torch.device,
        call: Callable[[str, Mapping[str, Any]], Any],
    ) -> None:
        self._call = call
        self._one = KeyValueCache(methods.get(EXTEND_METHOD), manifest.context, device)
        self._rows = RowCaches(methods.get(DECODE_METHOD), manifest, device)

    @torch.no_grad()
    def extend(self, tokens_T: IntArray, start: int) -> FloatArray:
        """Read tokens at the positions from `start` on: logits f32[V] after the last one."""
        label_pos = np.array([[len(tokens_T) - 1]])
        values: dict[str, Any] = {"tokens": tokens_T[None], "label_pos": label_pos, "start": np.array([start])}
        logits, *new = self._call(EXTEND_METHOD, {**values, **self._one.inputs(start)})
        self._one.write(new, start)
        result: FloatArray = logits[0, 0].cpu().numpy()
        return result

    def fork(self, row: int, count: int) -> None:
        """Let text `row` of `decode` be the first `count` tokens that `extend` has read, whatever it was before."""
        self._rows.fork(self._one, row, count)

    @torch.no_grad()
    def decode(self, tokens_R: IntArray, starts_R: IntArray) -> FloatArray:
        """Read one token of each of R texts at the positions i64[R]: logits f32[R, V] after them."""
        values: dict[str, Any] = {"tokens": tokens_R[None], "start": starts_R}
        logits, *new = self._call(DECODE_METHOD, {**values, **self._rows.inputs(int(starts_R.max()))})
        self._rows.write_rows(new, starts_R)
        result: FloatArray = logits[0].cpu().numpy()
        return result

    def clear(self) -> None:
        """Clear what `extend` has read. A NaN left in it would poison every attention sum, even at weight 0."""
        self._one.clear()
