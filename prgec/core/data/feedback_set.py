"""Rows of feedback, encoded for a program."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from prgec.core.contract.manifest import Manifest
from prgec.core.data.cut import fit
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import encode_item
from prgec.core.data.row import Encoded, Encoder, Row
from prgec.core.data.rows_file import RowSet, fingerprint
from prgec.core.data.task import Item
from prgec.errors import DataError

logger = logging.getLogger(__name__)


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
    """Encode a data set of feedback. An answer with more than K tokens is cut.

    Raises:
        DataError: If an answer has no tokens, or becomes several rows.
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
    encoded, num_cut = [], 0
    for item in items:
        parts = encode_item(item, tokenizer)
        if len(parts) != 1:
            raise DataError(
                f"the answer becomes {len(parts)} rows, and feedback is about one",
                where=item.where,
                hint="an answer is one turn of the assistant, after the prompt",
            )
        short = _first_labels(parts[0], manifest.num_labels)
        num_cut += short is not parts[0]
        encoded.append(short)
    if num_cut:
        logger.warning(
            "%d of %d answers have more than K = %d tokens: their first %d are compared",
            *(num_cut, len(encoded), manifest.num_labels, manifest.num_labels),
        )
    return fit(encoded, manifest)


def _first_labels(encoded: Encoded, most: int) -> Encoded:
    """Return a row with at most that many labels, and no tokens after the last of them."""
    row = encoded.row
    if len(row.targets) <= most:
        return encoded
    labels = row.label_pos[:most]
    return replace(encoded, row=Row(row.tokens[: labels[-1] + 1], labels, row.targets[:most]))
