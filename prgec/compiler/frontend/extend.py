"""Exports the model with a cache: it reads new tokens after those whose keys and values the cache holds.

    extend(tokens i64[1, T], label_pos i64[1, 1], start i64[1], cache) -> logits f32[1, 1, V], new

`tokens` stand at the positions start, start + 1, ...; the logits are those after tokens[label_pos]. `cache` is the
keys f32[H, n, d] of each layer, then its values, layer by layer, of the n positions for which the caller has room;
those from `start` on are not seen. `new` is the same of the new tokens, f32[H, T, d], to be written after them. A
cache of 8 bits is two inputs each, i8[H, n, d] and the scale of every row of it, f32[H, n, 1].

Letters: T new tokens, n positions of the cache, at most C, H key heads, G query heads to a key head, d head width,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.export import Dim

from prgec.compiler.frontend.cached import (
    CachedAttention,
    CachePart,
    NewKeys,
    attending,
    empty_cache,
    export_cached,
    parts_of,
    tracing,
)
from prgec.passes.attention import MASKED
from prgec.passes.program import GraphProgram, traced_seq_len

# A position after all those a model knows.
_NEVER = 1 << 30


class ExtendModel(nn.Module):
    """An unmodified Hugging Face causal LM with a cache of its caller's.

    Args:
        model: Causal LM whose forward returns `.logits` f32[1, T, V].
        bits: Bits of the cache, or 0 for f32.
    """

    def __init__(self, model: nn.Module, bits: int = 0) -> None:
        super().__init__()
        self.hf = model
        self._bits = bits

    def forward(self, tokens: Tensor, label_pos: Tensor, start: Tensor, *cache: Tensor) -> tuple[Tensor, ...]:
        """Return the logits f32[1, 1, V] after tokens[label_pos], and the new entries of the cache, in its order."""
        for each in cache:
            # Sharing a Dim is not enough: where names of sizes collide, one of many stays apart.
            torch._check(each.shape[1] == cache[0].shape[1])
        positions = start + torch.arange(tokens.shape[1])
        new = NewKeys()
        with attending(self.hf, _TextAttention(parts_of(cache, self._bits), start, positions)):
            logits_1TV = self.hf(
                input_ids=tokens, position_ids=positions.unsqueeze(0), past_key_values=new, use_cache=True
            ).logits
        index = label_pos.unsqueeze(-1).expand(-1, -1, logits_1TV.shape[-1])
        logits = torch.gather(logits_1TV, 1, index).to(torch.float32)
        return logits, *(each.squeeze(0) for _, pair in sorted(new.found.items()) for each in pair)


class _TextAttention(CachedAttention):
    """Attention of the new tokens of one text.

    Args:
        cache: As in `CachedAttention`, with a matrix for each key head.
        start: i64[1], how many positions of the cache are filled.
        positions: i64[T] of the new tokens.
    """

    def __init__(self, cache: Sequence[CachePart], start: Tensor, positions: Tensor) -> None:
        super().__init__(cache)
        held = torch.arange(cache[0].codes.shape[1])
        # The cache from `start` on belongs to another text: it is placed beyond every position, so that nobody sees it.
        self._columns = torch.cat([torch.where(held < start, held, _NEVER), positions])
        self._positions = positions

    def _by_head(self, entries: Tensor, heads: int) -> Tensor:
        return entries.reshape(heads, -1, entries.shape[-1])

    def _by_token(self, mixed: Tensor, heads: int, group: int) -> Tensor:
        # One view from [.., G*T, d] to [1, G*H, T, d] makes the tracer guard on T; two do not.
        width = mixed.shape[-1]
        return mixed.view(heads, group, -1, width).view(1, heads * group, -1, width).transpose(1, 2)

    def _mask(self, window: int | None, heads: int, group: int) -> Tensor:
        """Additive f32[1, G*T, n + T]."""
        if (window, group) not in self._masks:
            back = self._positions.unsqueeze(1) - self._columns
            is_seen = back >= 0 if window is None else (back >= 0) & (back < window)
            mask = torch.where(is_seen, 0.0, MASKED).unsqueeze(0)
            # cat and not repeat: merging [G, T] makes the tracer guard on T.
            self._masks[window, group] = torch.cat([mask] * group, 1) if group > 1 else mask
        return self._masks[window, group]


def export_extend(model: nn.Module, *, context: int, chunk: int, dynamic: bool, bits: int = 0) -> GraphProgram:
    """Export the model with a cache.

    Args:
        model: Causal LM from `load_model`; as it was, when this returns.
        context: C, the maximum of n.
        chunk: T, the maximum where `dynamic`.
        dynamic: Whether T may vary up to `chunk`, and n up to C.
        bits: Bits of the cache: 8, or 0 for f32.

    Returns:
        Graph with inputs tokens, label_pos, start and the cache; attributes carry the names of the model.

    Raises:
        CheckpointError: If the architecture cannot be traced.
    """
    zero = torch.zeros(1, dtype=torch.int64)
    positions, count = (traced_seq_len(context), traced_seq_len(chunk)) if dynamic else (context, chunk)
    T, n = (Dim("T", min=2, max=chunk), Dim("n", min=2, max=context)) if dynamic else (None, None)
    with tracing(model):
        cache = empty_cache(model, positions, bits)
        return export_cached(
            model,
            ExtendModel(model, bits),
            (torch.zeros(1, count, dtype=torch.int64), zero.unsqueeze(0), zero, *cache),
            {"tokens": {1: T}, "label_pos": None, "start": None, "cache": tuple({1: n} for _ in cache)},
            context=context,
            chunk=chunk,
        )
