"""Cut rows to the lengths of a program.

Letters: T tokens, K label positions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from prgec.core.data.row import Encoded, Row, Sizes
from prgec.errors import DataError

logger = logging.getLogger(__name__)


def fit(encoded: Sequence[Encoded], manifest: Sizes) -> list[Row]:
    """Cut rows to a program: prompts from their left, conversations by turns, documents into several rows.

    One warning counts the rows that lost something, and shows one.

    Raises:
        DataError: If rows have more targets than K, or targets alone are longer than T; says how many, and the longest.
    """
    lengths = [len(each.row.tokens) for each in encoded if not each.is_text]
    encoded, lost = shorten(encoded, manifest.seq_len)
    _check_targets(encoded, manifest)
    _check_ids(encoded, manifest)
    rows = [_weighed(row, each.weight) for each in encoded for row in _fitted(each, manifest)]
    if lost:
        logger.warning(
            "%d of %d rows are longer than %d tokens, the longest has %d: cut from the %s. The first is %s, which %s",
            len(lost),
            len(encoded),
            manifest.seq_len,
            max(lengths),
            "right of the texts" if any(each.is_classified for each in encoded) else "left of the prompt",
            *lost[0],
        )
    return rows


def cut_prompt(ids: list[int], limit: int, bos_id: int | None) -> list[int]:
    """Return at most `limit` ids of a prompt: one that is longer loses those after its BOS."""
    num_cut = max(0, len(ids) - limit)
    head = ids[:1] if ids[:1] == [bos_id] and num_cut else []
    return head + ids[len(head) + num_cut :]


def shorten(encoded: Sequence[Encoded], seq_len: int) -> tuple[list[Encoded], list[tuple[str, str]]]:
    """Return rows of which conversations that are too long lost turns; where rows lose something, and what.

    Other rows stay as they are: they are cut later.
    """
    kept, lost = [], []
    for each in encoded:
        num_over = 0 if each.is_text else len(each.row.tokens) - seq_len
        if num_over > 0 and each.shorter is not None:
            shortened = each.shorter(seq_len)
            lost.append((each.where, shortened.lost))
            each = replace(each, row=shortened.row, shorter=None)
        elif num_over > 0:
            lost.append((each.where, f"lost {num_over} of its {len(each.row.tokens)} tokens"))
        kept.append(each)
    return kept, lost


def _check_targets(encoded: Sequence[Encoded], manifest: Sizes) -> None:
    for limit, what, flag in (
        (manifest.num_labels, "K = {} label positions", "--label-tokens"),
        (manifest.seq_len, "T = {} tokens", "--seq-len"),
    ):
        over = [each for each in encoded if not each.is_text and len(each.row.targets) > limit]
        if over:
            longest = max(over, key=lambda each: len(each.row.targets))
            count = len(longest.row.targets)
            raise DataError(
                f"{len(over)} of {len(encoded)} completions have more tokens than the program's "
                f"{what.format(limit)}; the longest has {count}",
                where=longest.where,
                hint=f"compile with {flag} {count}, or with --data",
            )


def _check_ids(encoded: Sequence[Encoded], manifest: Sizes) -> None:
    for each in encoded:
        largest = max(max(each.row.tokens), max(each.row.targets))
        if largest >= manifest.vocab_size:
            raise DataError(
                f"token {largest} lies beyond the model's vocabulary of {manifest.vocab_size}",
                where=each.where,
                hint="the text uses a token the model has no embedding for",
            )


def _weighed(row: Row, weight: float) -> Row:
    return row if weight == 1.0 else replace(row, weights=(weight,) * len(row.targets))


def _fitted(encoded: Encoded, manifest: Sizes) -> list[Row]:
    if encoded.is_text:
        return _windows(encoded.row, manifest)
    row = encoded.row
    num_cut = max(0, len(row.tokens) - manifest.seq_len)
    if num_cut == 0:
        return [row]
    if encoded.is_classified:
        return [replace(row, tokens=row.tokens[: manifest.seq_len - 1] + row.tokens[-1:], truncated=True)]
    head = row.tokens[:1] if encoded.has_bos else ()
    tokens = head + row.tokens[len(head) + num_cut :]
    # Targets of early turns may lie in the cut part; a label needs its own position and the token before it.
    kept = [(p - num_cut, target) for p, target in zip(row.label_pos, row.targets, strict=True) if p >= num_cut]
    positions, targets = zip(*kept, strict=True)
    return [Row(tokens, positions, targets, truncated=True)]


def _windows(row: Row, manifest: Sizes) -> list[Row]:
    """Split a document so that every token is predicted once, with as much text before it as T and K allow."""
    rows = []
    stride = min(manifest.num_labels, manifest.seq_len)
    for first in range(0, len(row.targets), stride):
        end = min(first + stride, len(row.targets))
        start = max(0, end - manifest.seq_len)
        positions = tuple(range(first - start, end - start))
        rows.append(Row(row.tokens[start:end], positions, row.targets[first:end]))
    return rows
