"""Exports the model as it writes the next token of several texts at once, each with a cache of its own.

    decode(tokens i64[1, R], start i64[R], cache) -> logits f32[1, R, V], new

Token r stands at the position start[r] of text r, and logits[0, r] are those after it. `cache` is that of `extend`, of
all texts one after the other: keys f32[R*H, n, d] of each layer, then its values, of the n positions for which the
caller has room; those of text r from start[r] on are not seen. `new` is f32[R*H, 1, d], to be written at start.

The model reads the R tokens as if they were one text: whatever it does to a token does not depend on its neighbours,
but for attention, and that is ours. So frozen weights are multiplied with R tokens at a time, which costs little more
than one where reading the weights is what takes the time.

Letters: R texts, n positions of the cache, H key heads, G query heads to a key head, d head width, V vocabulary.
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


class DecodeModel(nn.Module):
    """An unmodified Hugging Face causal LM over the caches of R texts.

    Args:
        model: Causal LM whose forward returns `.logits` f32[1, R, V].
        bits: Bits of the caches, or 0 for f32.
    """

    def __init__(self, model: nn.Module, bits: int = 0) -> None:
        super().__init__()
        self.hf = model
        self._bits = bits

    def forward(self, tokens: Tensor, start: Tensor, *cache: Tensor) -> tuple[Tensor, ...]:
        """Return the logits f32[1, R, V] after each token, and the new entries of the caches, in their order."""
        for each in cache:
            # Sharing a Dim is not enough: where names of sizes collide, one of many stays apart.
            torch._check(each.shape[1] == cache[0].shape[1])
        new = NewKeys()
        with attending(self.hf, _RowAttention(parts_of(cache, self._bits), start)):
            logits = self.hf(
                input_ids=tokens, position_ids=start.unsqueeze(0), past_key_values=new, use_cache=True
            ).logits
        return logits.to(torch.float32), *(
            _by_row(each, each.shape[1]) for _, pair in sorted(new.found.items()) for each in pair
        )


def _by_row(entries: Tensor, heads: int) -> Tensor:
    """Lay f32[1, *, R, d] as f32[R*H, *, d]."""
    return entries.transpose(1, 2).reshape(entries.shape[2] * heads, -1, entries.shape[-1])


class _RowAttention(CachedAttention):
    """Attention of one token of each text over what was read of that text, and over itself.

    Args:
        cache: As in `CachedAttention`, with a matrix for each key head of each text.
        start: i64[R], how many positions of each text are filled.
    """

    def __init__(self, cache: Sequence[CachePart], start: Tensor) -> None:
        super().__init__(cache)
        self._start = start

    def _by_head(self, entries: Tensor, heads: int) -> Tensor:
        return _by_row(entries, heads)

    def _by_token(self, mixed: Tensor, heads: int, group: int) -> Tensor:
        return mixed.reshape(1, self._start.shape[0], -1, mixed.shape[-1])

    def _mask(self, window: int | None, heads: int, group: int) -> Tensor:
        """Additive f32[R*H, 1, n + 1]."""
        if (window, heads) not in self._masks:
            # Repeated before there is an n: views of a size that varies make the tracer guard on it.
            start = self._start.unsqueeze(1).expand(-1, heads).reshape(-1, 1)
            back = start - torch.arange(self._cache[0].codes.shape[1])
            is_seen = back > 0 if window is None else (back > 0) & (back < window)
            # Every token sees itself.
            mask = torch.where(is_seen, 0.0, MASKED).unsqueeze(1)
            self._masks[window, heads] = torch.cat([mask, torch.zeros(start.shape[0], 1, 1)], -1)
        return self._masks[window, heads]


def export_decode(model: nn.Module, *, context: int, rows: int, bits: int = 0) -> GraphProgram:
    """Export the model over the caches of several texts.

    Args:
        model: Causal LM from `load_model`; as it was, when this returns.
        context: C, the maximum of n.
        rows: R.
        bits: Bits of the caches: 8, or 0 for f32.

    Returns:
        Graph with inputs tokens, start and the cache; attributes carry the names of the model.

    Raises:
        CheckpointError: If the architecture cannot be traced.
    """
    n = Dim("n", min=2, max=context)
    with tracing(model):
        cache = empty_cache(model, traced_seq_len(context), bits, rows)
        return export_cached(
            model,
            DecodeModel(model, bits),
            (torch.zeros(1, rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64), *cache),
            {"tokens": None, "start": None, "cache": tuple({1: n} for _ in cache)},
            context=context,
            chunk=rows,
        )
