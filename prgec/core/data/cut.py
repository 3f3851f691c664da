"""Cut rows to the lengths of a program.

Letters: T tokens, K label positions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from prgec.core.data.kept_rows import KeptRows
from prgec.core.data.row import Encoded, Row, Sizes
from prgec.errors import DataError

logger = logging.getLogger(__name__)


def fit(encoded: Iterable[Encoded], manifest: Sizes) -> Sequence[Row]:
    """Cut rows to a program: prompts from their left, conversations by turns, documents into several rows.

    One warning counts the rows that lost something, and shows one. Rows are taken one at a time.

    Raises:
        DataError: If rows have more targets than K, or targets alone are longer than T; says how many, and the longest.
    """
    shorten, check, rows = Shortening(manifest.seq_len), _Check(manifest), KeptRows()
    is_classified = False
    for each in map(shorten, encoded):
        is_classified = is_classified or each.is_classified
        if check.fits(each):
            for row in _fitted(each, manifest):
                rows.append(_weighed(row, each.weight))
    check.finish()
    if shorten.num_lost:
        side = "right of the texts" if is_classified else "left of the prompt"
        logger.warning("%s: cut from the %s. The first is %s, which %s", shorten, side, *shorten.first_lost)
    return rows


def cut_prompt(ids: list[int], limit: int, bos_id: int | None) -> list[int]:
    """Return at most `limit` ids of a prompt: one that is longer loses those after its BOS."""
    num_cut = max(0, len(ids) - limit)
    head = ids[:1] if ids[:1] == [bos_id] and num_cut else []
    return head + ids[len(head) + num_cut :]


class Shortening:
    """Takes turns from conversations that are too long, and counts the rows that lose something.

    Args:
        seq_len: T.

    Attributes:
        num_rows: Rows so far.
        num_lost: Those that lose something.
        first_lost: Where the first of these is, and what it loses.
        longest: Most tokens of a row, documents left out.
    """

    def __init__(self, seq_len: int) -> None:
        self._seq_len = seq_len
        self.num_rows = self.num_lost = self.longest = 0
        self.first_lost = ("", "")

    def __call__(self, each: Encoded) -> Encoded:
        """Return the row; a conversation that is too long with fewer turns. Other rows are cut later."""
        self.num_rows += 1
        length = 0 if each.is_text else len(each.row.tokens)
        self.longest = max(self.longest, length)
        if length <= self._seq_len:
            return each
        shortened = each.shorter(self._seq_len) if each.shorter is not None else None
        lost = f"lost {length - self._seq_len} of its {length} tokens" if shortened is None else shortened.lost
        self.first_lost = self.first_lost if self.num_lost else (each.where, lost)
        self.num_lost += 1
        return each if shortened is None else replace(each, row=shortened.row, shorter=None)

    def __str__(self) -> str:
        return (
            f"{self.num_lost} of {self.num_rows} rows are longer than T = {self._seq_len}, the longest has "
            f"{self.longest} tokens"
        )


@dataclass(kw_only=True)
class _Limit:
    """Most targets of a row, and the rows that have more.

    Attributes:
        most: The limit.
        what: The limit as people call it.
        flag: Option that raises it.
        count: Rows beyond it.
        longest: Targets of the longest of these.
        where: Place of that one.
    """

    most: int
    what: str
    flag: str
    count: int = 0
    longest: int = 0
    where: str = ""

    def allows(self, each: Encoded) -> bool:
        """Return whether a row is within the limit, and count it if not."""
        count = len(each.row.targets)
        if count <= self.most:
            return True
        self.count += 1
        if count > self.longest:
            self.longest, self.where = count, each.where
        return False


class _Check:
    """Counts rows that do not fit a program, and refuses them when all were seen."""

    def __init__(self, manifest: Sizes) -> None:
        self._limits = (
            _Limit(most=manifest.num_labels, what=f"K = {manifest.num_labels} label positions", flag="--label-tokens"),
            _Limit(most=manifest.seq_len, what=f"T = {manifest.seq_len} tokens", flag="--seq-len"),
        )
        self._vocab_size, self._num_rows = manifest.vocab_size, 0
        self._beyond: tuple[int, str] | None = None

    def fits(self, each: Encoded) -> bool:
        """Return whether a row can be cut to the program."""
        self._num_rows += 1
        largest = max(max(each.row.tokens), max(each.row.targets))
        if largest >= self._vocab_size:
            self._beyond = self._beyond or (largest, each.where)
            return False
        return each.is_text or all([limit.allows(each) for limit in self._limits])

    def finish(self) -> None:
        """Refuse what was counted.

        Raises:
            DataError: If a row did not fit.
        """
        for limit in self._limits:
            if limit.count:
                raise DataError(
                    f"{limit.count} of {self._num_rows} completions have more tokens than the program's {limit.what}; "
                    f"the longest has {limit.longest}",
                    where=limit.where,
                    hint=f"compile with {limit.flag} {limit.longest}, or with --data",
                )
        if self._beyond is not None:
            token, where = self._beyond
            raise DataError(
                f"token {token} lies beyond the model's vocabulary of {self._vocab_size}",
                where=where,
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
