"""Rows as packed bytes, before and after they are cut to a program."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from functools import partial

from prgec.core.data.conversations import Shorter
from prgec.core.data.kept import Kept
from prgec.core.data.row import Encoded, Encoder, Row, Shortened
from prgec.core.data.rows_file import row_of_words, words_of


class KeptRows(Kept[Row]):
    """Rows of a program, which take no memory where they are many.

    Args:
        rows: The first ones.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        super().__init__(_packed_row, _row, rows)

    def bodies(self) -> Iterator[bytes]:
        """Yield each row as a file of rows stores it."""
        return (each[1:] for each in self.packed())


def kept_encoded(encoded: Iterable[Encoded], tokenizer: Encoder) -> Kept[Encoded]:
    """Return uncut rows, each taken once and made again when it is used.

    Args:
        encoded: The rows.
        tokenizer: The one that made them.
    """

    def pack(each: Encoded) -> bytes:
        turns = pickle.dumps((each.shorter.item, each.shorter.only_last)) if isinstance(each.shorter, Shorter) else None
        fields = {name: getattr(each, name) for name in ("where", "has_bos", "is_text", "is_classified", "weight")}
        return pickle.dumps((_packed_row(each.row), turns, fields))

    def unpack(packed: bytes) -> Encoded:
        row, turns, fields = pickle.loads(packed)
        shorter = None if turns is None else partial(_again, turns, tokenizer)
        return Encoded(row=_row(row), shorter=shorter, **fields)

    return Kept(pack, unpack, encoded)


def _again(turns: bytes, tokenizer: Encoder, seq_len: int) -> Shortened:
    # The turns themselves are made again for the few rows alone that are too long.
    item, only_last = pickle.loads(turns)
    return Shorter(item, tokenizer, only_last)(seq_len)


def _packed_row(row: Row) -> bytes:
    words: bytes = words_of(row).tobytes()
    return bytes([row.truncated]) + words


def _row(packed: bytes) -> Row:
    return row_of_words(packed[1:], truncated=bool(packed[0]))
