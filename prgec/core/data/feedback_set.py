"""Rows of feedback, encoded for a program."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prgec.core.contract.manifest import Manifest
from prgec.core.data.cut import fit
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import encode_item
from prgec.core.data.row import Encoder, Row
from prgec.core.data.rows_file import RowSet, fingerprint
from prgec.core.data.task import Item
from prgec.errors import DataError


@dataclass(frozen=True)
class FeedbackSet(RowSet):
    """Answers, each a row; of pairs the chosen one is the right candidate, and comes first.

    Attributes:
        is_good: Whether each row is a good answer.
        others: Each row's prompt with the answer to another, where the objective reads them; else empty.
    """

    is_good: tuple[bool, ...] = ()
    others: Sequence[Row] = ()

    @property
    def crc(self) -> int:
        """A name of all of it."""
        text = bytes(self.is_good)
        return zlib.crc32(text, zlib.crc32(fingerprint(self.others).to_bytes(4, "little"), fingerprint(self.rows)))


def encode_feedback(dataset: Dataset, tokenizer: Encoder, manifest: Manifest) -> FeedbackSet:
    """Encode a data set of feedback.

    Raises:
        DataError: If an answer has no tokens or more than K, or becomes several rows.
    """
    rows = _rows(dataset.examples, tokenizer, manifest)
    num_candidates = 2 if dataset.is_paired else 1
    return FeedbackSet(
        rows,
        num_candidates,
        (0,) * (len(rows) // num_candidates),
        dataset.is_good,
        _rows(dataset.others, tokenizer, manifest),
    )


def _rows(items: Iterable[Item], tokenizer: Encoder, manifest: Manifest) -> Sequence[Row]:
    encoded = []
    for item in items:
        parts = encode_item(item, tokenizer)
        if len(parts) != 1:
            raise DataError(
                f"the answer becomes {len(parts)} rows, and feedback is about one",
                where=item.where,
                hint="an answer is one turn of the assistant, after the prompt",
            )
        encoded += parts
    return fit(encoded, manifest)
