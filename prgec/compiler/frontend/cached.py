"""Shared by the methods that read on with a cache: its inputs, and how transformers is made to use it.

transformers computes everything but attention: it is given a cache that keeps nothing, and an attention of ours, which
reads what the cache holds and the new keys side by side. So no layer waits for a write to the cache, and one delegate
can hold them all.

Letters: T new tokens, n positions of the cache, at most C, H key heads, d head width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prgec.compiler.frontend.model import with_checkpoint_names
from prgec.compiler.frontend.scans import exportable
from prgec.errors import CheckpointError
from prgec.passes.program import GraphProgram

_ATTENTION = "prgec_cached"
_ROTARY = "RotaryEmbedding"


class NewKeys:
    """Stands in for transformers' cache: notes what is new and gives it back as it is.

    Attributes:
        found: New keys and values f32[1, H, T, d], by layer.
    """

    def __init__(self) -> None:
        self.found: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Note one layer's new keys and values."""
        self.found[layer] = keys, values
        return keys, values

    def get_seq_length(self, *_: Any) -> int:
        """Positions are given; nobody may count them."""
        return 0

    def __getattr__(self, name: str) -> Any:
        """Refuse a layer that keeps more than keys and values.

        Raises:
            CheckpointError: For the state of a convolution or a recurrence.
        """
        if name.endswith("_state"):
            raise CheckpointError(
                "the model keeps a state beside keys and values; --context has no place for it",
                hint="leave out --context: answers are then written without a cache",
            )
        raise AttributeError(name)


@dataclass(frozen=True)
class CachePart:
    """Keys or values of one layer, as they are kept.

    Attributes:
        codes: f32 or i8[H, n, d].
        scale: f32[H, n, 1] of codes in 8 bits.
    """

    codes: Tensor
    scale: Tensor | None = None

    def numbers(self) -> Tensor:
        """f32[H, n, d]."""
        if self.scale is None:
            return self.codes
        return self.codes.to(torch.float32) * self.scale


def parts_of(cache: Sequence[Tensor], bits: int) -> list[CachePart]:
    """Return the keys and values of every layer among the inputs of a method."""
    if not bits:
        return [CachePart(each) for each in cache]
    return [CachePart(*pair) for pair in zip(cache[::2], cache[1::2], strict=True)]


class CachedAttention(ABC):
    """transformers' eager attention, with the keys in two parts: those that the cache holds, and the new ones.

    Letters: M matrices, one for each key head of each text; G query heads to a key head.

    Args:
        cache: Keys and values of each layer, one after the other; each gives f32[M, n, d] on request.
    """

    def __init__(self, cache: Sequence[CachePart]) -> None:
        self._cache = cache
        self._masks: dict[tuple[int | None, int], Tensor] = {}

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Return f32[1, T, G*H, d].

        Raises:
            CheckpointError: If the model makes a mask of its own.
        """
        if attention_mask is not None:
            raise CheckpointError("the model makes an attention mask of its own, which a cache cannot follow")
        heads, width = key.shape[1], query.shape[-1]
        group = query.shape[1] // heads
        # Here and not before: no two layers' numbers are there at once.
        k_cache, v_cache = (each.numbers() for each in self._cache[2 * module.layer_idx : 2 * module.layer_idx + 2])
        q = self._by_head(query, heads) * (width**-0.5 if scaling is None else scaling)
        k, v = self._by_head(key, heads), self._by_head(value, heads)
        scores = torch.cat([torch.bmm(q, k_cache.transpose(1, 2)), torch.bmm(q, k.transpose(1, 2))], -1)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        weights = torch.softmax(scores + self._mask(sliding_window, heads, group), -1)
        return self._by_token(torch.bmm(weights, torch.cat([v_cache, v], 1)), heads, group), None

    @abstractmethod
    def _by_head(self, entries: Tensor, heads: int) -> Tensor:
        """Lay f32[1, *, T, d] by the matrices of the cache: f32[M, *, d]."""

    @abstractmethod
    def _by_token(self, mixed: Tensor, heads: int, group: int) -> Tensor:
        """Lay f32[M, *, d] as f32[1, T, G*H, d]."""

    @abstractmethod
    def _mask(self, window: int | None, heads: int, group: int) -> Tensor:
        """Return what is added to the scores; layers share it."""


class _RotaryTable(nn.Module):
    """Rotary embeddings cut out of a table of all positions, which folds to a constant.

    Args:
        rotary: Module of the model: (x, position_ids, ...) -> cos, sin f32[1, T, d].
        context: C.
    """

    def __init__(self, rotary: nn.Module, context: int) -> None:
        super().__init__()
        self.rotary = rotary
        self.context = context

    def forward(self, x: Tensor, position_ids: Tensor, *args: Any, **named: Any) -> tuple[Tensor, ...]:
        """Return the rows of the module's tables at `position_ids` i64[1, T]."""
        every = torch.arange(self.context).unsqueeze(0)
        tables = self.rotary(x, every, *args, **named)
        return tuple(table.index_select(1, position_ids[0]) for table in tables)


def export_cached(
    model: nn.Module, wrapped: nn.Module, example: tuple[Tensor, ...], shapes: Any, *, context: int, chunk: int
) -> GraphProgram:
    """Export a model around its checkpoint's model, with rotary embeddings from a table.

    Args:
        model: Causal LM from `load_model`; as it was, when this returns.
        wrapped: The module to trace.
        example: Its inputs.
        shapes: Sizes of them that vary, as `torch.export` takes them.
        context: C, positions of the table.
        chunk: Most tokens of a call.

    """
    with torch.no_grad(), exportable(model, chunk), _with_rotary_tables(model, context):
        return with_checkpoint_names(torch.export.export(wrapped.eval(), example, dynamic_shapes=shapes, strict=False))


@contextmanager
def tracing(model: nn.Module) -> Iterator[None]:
    """Report whatever a model raises in here as one error.

    Raises:
        CheckpointError: If the architecture cannot be traced.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # torch.export's failures have no common base class
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(f"torch.export cannot trace {type(model).__name__} with a cache: {reason}") from error


def _cache_shapes(model: nn.Module) -> list[tuple[int, int]]:
    """Heads and width of the keys of each layer, then of its values, layer by layer: as a short run finds them."""
    new = NewKeys()
    with torch.no_grad(), attending(model, _look):
        model(input_ids=torch.zeros(1, 2, dtype=torch.int64), past_key_values=new, use_cache=True)
    return [(each.shape[1], each.shape[-1]) for _, pair in sorted(new.found.items()) for each in pair]


def empty_cache(model: nn.Module, positions: int, bits: int, rows: int = 1) -> list[Tensor]:
    """Return cache inputs of so many texts, with room for `positions` positions."""
    shapes = [(rows * heads, width) for heads, width in _cache_shapes(model)]
    if not bits:
        return [torch.zeros(heads, positions, width) for heads, width in shapes]
    pairs = [((heads, positions, width), (heads, positions, 1)) for heads, width in shapes]
    return [each for codes, scale in pairs for each in (torch.zeros(codes, dtype=torch.int8), torch.zeros(scale))]


def _look(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """Something of the shape that attention has."""
    del module, key
    return query.transpose(1, 2)[..., : value.shape[-1]], None


@contextmanager
def attending(model: Any, attention: Any) -> Iterator[None]:
    """Let the model attend by `attention`."""
    from transformers import AttentionInterface

    AttentionInterface.register(_ATTENTION, attention)
    before = model.config._attn_implementation
    model.config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        model.config._attn_implementation = before


@contextmanager
def _with_rotary_tables(model: nn.Module, context: int) -> Iterator[None]:
    """Let every rotary embedding of the model be cut out of a table."""
    found = [(name, each) for name, each in model.named_modules() if type(each).__name__.endswith(_ROTARY)]
    for name, rotary in found:
        model.set_submodule(name, _RotaryTable(rotary, context))
    try:
        yield
    finally:
        for name, rotary in found:
            model.set_submodule(name, rotary)
