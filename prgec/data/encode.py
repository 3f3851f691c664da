"""Turn an example into a row: token ids, label positions and targets, cut to the compiled length.

Letters: T tokens, K label positions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from prgec.contract import Manifest
from prgec.data.tasks import Example
from prgec.errors import DataError

logger = logging.getLogger(__name__)


class Encoder(Protocol):
    """The part of a tokenizer that encoding needs."""

    @property
    def bos_id(self) -> int | None:
        """Id of the token every text starts with, or None."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""


@dataclass(frozen=True)
class Row:
    """One unpadded input row.

    Attributes:
        tokens: Ids the model reads; at most T.
        label_pos: Position in `tokens` whose logits predict each target; at most K.
        targets: Id to predict at each label position.
        truncated: Whether the prompt lost tokens on its left.
    """

    tokens: tuple[int, ...]
    label_pos: tuple[int, ...]
    targets: tuple[int, ...]
    truncated: bool = False


def encode_rows(pairs: Iterable[tuple[Example, str]], tokenizer: Encoder, manifest: Manifest) -> list[Row]:
    """Encode (example, completion) pairs; one warning tells how many prompts were cut.

    Raises:
        DataError: If a completion is empty, or longer than the program's K label positions.
    """
    rows = [encode_row(example, completion, tokenizer, manifest) for example, completion in pairs]
    num_truncated = sum(row.truncated for row in rows)
    if num_truncated:
        logger.warning("%d of %d rows are longer than %d tokens: cut from the left of the prompt",
                       num_truncated, len(rows), manifest.seq_len)  # fmt: skip
    return rows


def encode_row(example: Example, completion: str, tokenizer: Encoder, manifest: Manifest) -> Row:
    """Encode one prompt with one completion.

    The completion's tokens are those of `prompt + completion` behind what it has in common with `prompt`, so a token
    that straddles the border counts as completion. The last token is only predicted, never read.

    Raises:
        DataError: If the completion has no tokens, more than K tokens, or nothing in front of it.
    """
    full = tokenizer.encode(example.prompt + completion)
    start = _common_prefix(full, tokenizer.encode(example.prompt))
    num_targets = len(full) - start
    _check_targets(example, num_targets, start, manifest)
    has_bos = tokenizer.bos_id is not None and full[0] == tokenizer.bos_id
    tokens, num_cut = _cut_left(full[:-1], manifest.seq_len, keep_first=has_bos)
    first = start - 1 - num_cut
    return Row(tuple(tokens), tuple(range(first, first + num_targets)), tuple(full[start:]), truncated=num_cut > 0)


def _check_targets(example: Example, num_targets: int, start: int, manifest: Manifest) -> None:
    if num_targets == 0:
        raise DataError("the completion has no tokens", where=example.where)
    if num_targets > manifest.num_labels:
        what = f"the completion has {num_targets} tokens, the program has K = {manifest.num_labels} label positions"
        raise DataError(what, where=example.where, hint=f"compile with --label-tokens {num_targets}")
    if num_targets > manifest.seq_len:
        raise DataError(f"the completion has {num_targets} tokens, the program has T = {manifest.seq_len}",
                        where=example.where)  # fmt: skip
    if start == 0:
        raise DataError("the prompt is empty and the tokenizer has no BOS: nothing predicts the first token",
                        where=example.where)  # fmt: skip


def _common_prefix(left: list[int], right: list[int]) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def _cut_left(tokens: list[int], limit: int, *, keep_first: bool) -> tuple[list[int], int]:
    """Drop tokens from the left (behind a BOS) until `limit` remain; return them and how many went."""
    num_cut = max(0, len(tokens) - limit)
    if num_cut == 0:
        return tokens, 0
    head = tokens[:1] if keep_first else []
    return head + tokens[len(head) + num_cut :], num_cut
