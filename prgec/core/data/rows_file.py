"""Rows as a file: token ids, label positions and targets, so that a device needs no tokenizer. docs/rows.md.

Letters: E examples, C candidates, T tokens, K label positions, V vocabulary.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

from prgec.core.contract.manifest import Manifest
from prgec.core.data.row import Row
from prgec.errors import DataError

WordArray: TypeAlias = npt.NDArray[np.uint32]

MAGIC = b"PRGEROWS"
# Rows of the second have weights, or not.
VERSION, WEIGHTED_VERSION = 1, 2
# magic, version, checksum, size of the file, E, C, T, K, V, zero, sha256 of the tokenizer, task
_HEADER = struct.Struct("<8sIIQIIIIII32s16s")
# The checksum is over everything after it.
_CHECKED_FROM = 16
_WORD = np.dtype("<u4")
_FLOAT = np.dtype("<f4")
_HINT = "make it again with prgec tokenize"


@dataclass(frozen=True)
class RowSet:
    """Examples, each with one row for every candidate answer.

    Attributes:
        rows: E * C rows, example by example.
        num_candidates: C; 1 when the task is open-ended.
        answers: Index of the right candidate for each example.
    """

    rows: Sequence[Row]
    num_candidates: int
    answers: tuple[int, ...]

    def right_rows(self) -> Sequence[Row]:
        """Return the row of the right answer of every example, what training sees; decoded when it is used."""
        return _RightRows(self)


class LazyRows(Sequence[Row]):
    """Rows made when they are used; a subclass makes one of them by `_row`."""

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._row(index)

    @abstractmethod
    def _row(self, index: int) -> Row: ...


class _RightRows(LazyRows):
    """Rows of right answers, none of which is kept: a mapped file of any size takes no memory."""

    def __init__(self, row_set: RowSet) -> None:
        self._set = row_set

    def __len__(self) -> int:
        return len(self._set.answers)

    def _row(self, index: int) -> Row:
        return self._set.rows[index * self._set.num_candidates + self._set.answers[index]]


def fingerprint(rows: Iterable[Row]) -> int:
    """Return a CRC-32 of rows as a file stores them; a journal names its training data by it."""
    crc = 0
    for row in rows:
        crc = zlib.crc32(words_of(row).tobytes(), crc)
    return crc


def pack_rows(row_set: RowSet, manifest: Manifest, tokenizer_sha256: str, task: str) -> bytes:
    """Return the file's bytes; equal rows are equal bytes.

    Args:
        row_set: Rows to store.
        manifest: Program the rows were encoded for.
        tokenizer_sha256: Hash of the tokenizer that made them.
        task: Name of the task, for people.
    """
    bodies = [words_of(row) for row in row_set.rows]
    offsets = np.concatenate([[0], np.cumsum([len(body) for body in bodies])]).astype(_WORD)
    answers = np.array(row_set.answers, dtype=_WORD)
    content = b"".join(part.tobytes() for part in (answers, offsets, *bodies))
    sizes = (len(answers), row_set.num_candidates, manifest.seq_len, manifest.num_labels, manifest.vocab_size, 0)
    name = task.encode()[:16]
    file_bytes = _HEADER.size + len(content)
    version = WEIGHTED_VERSION if any(row.weights for row in row_set.rows) else VERSION
    draft = _HEADER.pack(MAGIC, version, 0, file_bytes, *sizes, bytes.fromhex(tokenizer_sha256), name)
    crc = zlib.crc32(content, zlib.crc32(draft[_CHECKED_FROM:]))
    return _HEADER.pack(MAGIC, version, crc, file_bytes, *sizes, bytes.fromhex(tokenizer_sha256), name) + content


def read_rows(path: Path, manifest: Manifest, tokenizer_sha256: str) -> RowSet:
    """Map a file of rows and check that it is whole and fits a program; rows are decoded when they are used.

    Raises:
        DataError: If the file is missing, damaged, or made for a program with another tokenizer or smaller sizes.
    """
    try:
        with path.open("rb") as file:
            raw = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise DataError("no such file of rows", where=path, hint="make it with prgec tokenize") from error
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the rows: {error}", where=path) from error
    num_examples, num_candidates = _check_header(raw, path, manifest, tokenizer_sha256)
    words: WordArray = np.frombuffer(raw, dtype=_WORD, offset=_HEADER.size)
    num_rows = num_examples * num_candidates
    if num_examples == 0 or num_candidates == 0 or len(words) < num_examples + num_rows + 1:
        raise DataError("the file of rows holds no rows", where=path, hint=_HINT)
    answers = words[:num_examples]
    if (answers >= num_candidates).any():
        raise DataError("the file of rows names an answer it does not contain", where=path, hint=_HINT)
    offsets = words[num_examples : num_examples + num_rows + 1]
    return RowSet(
        _MappedRows(
            words[num_examples + num_rows + 1 :],
            offsets,
            manifest,
            path,
            has_weights=_version_of(raw) == WEIGHTED_VERSION,
        ),
        num_candidates,
        tuple(answers.tolist()),
    )


class _MappedRows(LazyRows):
    """Rows of a mapped file, checked as they are decoded.

    Args:
        words: Bodies of all rows: n, k, n tokens, k label positions, k targets, and k weights or none.
        offsets: Place of every row in `words`, and the end of the last one.
        manifest: Bounds the rows must keep.
        path: For messages.
        has_weights: Whether rows may have weights.
    """

    def __init__(
        self, words: WordArray, offsets: WordArray, manifest: Manifest, path: Path, *, has_weights: bool
    ) -> None:
        self._words, self._offsets, self._manifest, self._path = words, offsets, manifest, path
        self._has_weights = has_weights

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def _row(self, index: int) -> Row:
        start, end = int(self._offsets[index]), int(self._offsets[index + 1])
        body = self._words[start:end].tolist()
        if not self._is_sound(body, end - start):
            raise DataError(f"row {index} of the file is damaged", where=self._path, hint=_HINT)
        return row_of_words(self._words[start:end].tobytes())

    def _is_sound(self, body: list[int], length: int) -> bool:
        m = self._manifest
        if length < 2 or len(body) != length:
            return False
        n, k = body[:2]
        ids_end = 2 + n + 2 * k
        ends = (ids_end, ids_end + k) if self._has_weights else (ids_end,)
        if not (1 <= n <= m.seq_len and 1 <= k <= m.num_labels and length in ends):
            return False
        ids, positions = body[2 : 2 + n] + body[2 + n + k : ids_end], body[2 + n : 2 + n + k]
        weights = np.array(body[ids_end:], dtype=_WORD).view(_FLOAT)
        return max(ids) < m.vocab_size and max(positions) < n and bool(np.isfinite(weights).all())


def words_of(row: Row) -> WordArray:
    """Return the words of a row in a file: n, k, n tokens, k label positions, k targets, k weights or none."""
    ids = np.array([len(row.tokens), len(row.targets), *row.tokens, *row.label_pos, *row.targets], dtype=_WORD)
    return np.concatenate([ids, np.array(row.weights, dtype=_FLOAT).view(_WORD)]) if row.weights else ids


def row_of_words(body: bytes, *, truncated: bool = False) -> Row:
    """Return the row that `words_of` made words of."""
    words = np.frombuffer(body, dtype=_WORD)
    n, k, *ids = words.tolist()
    weights = tuple(words[2 + n + 2 * k :].view(_FLOAT).tolist())
    return Row(tuple(ids[:n]), tuple(ids[n : n + k]), tuple(ids[n + k : n + 2 * k]), truncated, weights)


def _version_of(raw: mmap.mmap) -> int:
    return int(_HEADER.unpack(raw[: _HEADER.size])[1])


def _check_header(raw: mmap.mmap, path: Path, manifest: Manifest, tokenizer: str) -> tuple[int, int]:
    """Check everything but the rows themselves; return E and C."""
    if len(raw) < _HEADER.size or raw[:8] != MAGIC:
        raise DataError("not a file of rows", where=path, hint="make it with prgec tokenize")
    _, version, crc, file_bytes, *sizes, sha256, _ = _HEADER.unpack(raw[: _HEADER.size])
    if version not in (VERSION, WEIGHTED_VERSION):
        known = f"{VERSION} and {WEIGHTED_VERSION}"
        raise DataError(f"the file of rows has version {version}; this prgec reads {known}", where=path, hint=_HINT)
    if file_bytes != len(raw) or len(raw) % _WORD.itemsize or zlib.crc32(memoryview(raw)[_CHECKED_FROM:]) != crc:
        raise DataError("the file of rows is damaged or cut short", where=path, hint="copy it again")
    if sha256.hex() != tokenizer:
        raise DataError("the rows were made with another tokenizer than the program's", where=path, hint=_HINT)
    num_examples, num_candidates, seq_len, num_labels, vocab_size, _ = sizes
    limits = {
        "T": (seq_len, manifest.seq_len),
        "K": (num_labels, manifest.num_labels),
        "V": (vocab_size, manifest.vocab_size),
    }
    for name, (found, limit) in limits.items():
        if found > limit:
            raise DataError(
                f"the rows were made for {name} = {found}; the program has {name} = {limit}", where=path, hint=_HINT
            )
    return num_examples, num_candidates
