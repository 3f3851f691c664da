"""Runs the `prefix` method of a program, and keeps its results on disk so that later epochs skip it.

Letters: B examples a step, N = 2qB rows, T tokens, K label positions, D model width.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from prgec.core.contract.manifest import Manifest
from prgec.core.machine.files import write_atomic
from prgec.errors import UsageError

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

logger = logging.getLogger(__name__)

# The header before the values: CRC-32 of everything after it, then the exponent of their scale.
_CHECKSUM, _EXPONENT = struct.Struct("<I"), struct.Struct("<i")
_HEADER_BYTES = _CHECKSUM.size + _EXPONENT.size
_FORMAT = "prgec hidden states 2"


class HiddenCache:
    """Results of a prefix on disk, one file a row of tokens: f16[length, D].

    A result depends on the tokens and on what the prefix computes: the folder's name is the hash of the latter, and a
    file's name that of the tokens. Files appear whole or not at all, and carry a checksum, so that
    any number of runs may share a folder and none ever reads half a row. A damaged file is a row that is not kept.

    Args:
        folder: Parent folder; any programs may share it.
        manifest: The program the results come from.
        engine: Name of the engine that computes them.

    Raises:
        UsageError: If the folder cannot be used.
    """

    def __init__(self, folder: Path, manifest: Manifest, engine: str) -> None:
        self._folder = folder / _identity(manifest, engine)
        self._width = manifest.hidden_size
        self._takes_more = True
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot use the prefix cache: {error.strerror}", where=folder) from error

    def get(self, tokens: IntArray) -> FloatArray | None:
        """Return f32[length, D] of a row of tokens i64[length]; None if it is not kept."""
        try:
            raw = self._path(tokens).read_bytes()
        except OSError:
            return None
        return _unpack(raw, len(tokens), self._width)

    def put(self, tokens: IntArray, hidden: FloatArray) -> FloatArray:
        """Keep f32[length, D] for a row of tokens; return it as `get` will, rounded to f16.

        A disk that cannot take it only makes later epochs slower.
        """
        raw = _pack(hidden)
        if self._takes_more:
            try:
                write_atomic(self._path(tokens), raw)
            except OSError as error:
                self._takes_more = False
                logger.warning("the prefix cache keeps no more rows: %s (%s)", error.strerror, self._folder)
        kept = _unpack(raw, *hidden.shape)
        assert kept is not None
        return kept

    def _path(self, tokens: IntArray) -> Path:
        name = hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i8").tobytes()).hexdigest()
        return self._folder / f"{name}.f16"


class PrefixRunner:
    """Gives `forward` its hidden states, computed or kept.

    Args:
        compute: The `prefix` method: tokens i64[B, T] -> f32[B, T, D].
        manifest: The program's manifest.
        engine: Name of its engine: engines agree to rounding only, so none takes results of another.
    """

    def __init__(self, compute: Callable[[IntArray], FloatArray], manifest: Manifest, engine: str) -> None:
        self._compute = compute
        self._manifest = manifest
        self._engine = engine
        self._cache: HiddenCache | None = None

    def keep_in(self, folder: Path) -> None:
        """Keep results in `folder` from now on.

        Raises:
            UsageError: If the folder cannot be used.
        """
        self._cache = HiddenCache(folder, self._manifest, self._engine)

    def hidden(self, tokens_NT: IntArray, label_pos_NK: IntArray) -> FloatArray:
        """Return the hidden states of the B examples: f32[B, T, D].

        With a cache they are rounded to f16 whether kept or fresh, so that every epoch sees the same values, and zero
        after a row's last position that counts.
        """
        batch = self._manifest.batch_size
        tokens_BT, label_pos_BK = tokens_NT[:batch], label_pos_NK[:batch]
        if self._cache is None:
            return self._compute(tokens_BT)
        pad = self._manifest.pad_token_id
        rows = [row[: _used(row, labels, pad)] for row, labels in zip(tokens_BT, label_pos_BK, strict=True)]
        hidden_BTD = np.zeros((*tokens_BT.shape, self._manifest.hidden_size), dtype=np.float32)
        fresh_BTD: FloatArray | None = None
        for b, row in enumerate(rows):
            kept = self._cache.get(row)
            if kept is None:
                fresh_BTD = self._compute(tokens_BT) if fresh_BTD is None else fresh_BTD
                kept = self._cache.put(row, fresh_BTD[b, : len(row)])
            hidden_BTD[b, : len(row)] = kept
        return hidden_BTD


def keep_prefix(prefix: PrefixRunner | None, folder: Path, program: Path) -> None:
    """Keep the results of a program's prefix in `folder` from now on.

    Raises:
        UsageError: If the program has no prefix method, or the folder cannot be used.
    """
    if prefix is None:
        raise UsageError(
            "the program has no prefix method whose results could be kept",
            where=program,
            hint="compile it with --layers last:K --prefix method",
        )
    prefix.keep_in(folder)


def _identity(manifest: Manifest, engine: str) -> str:
    """Hash of everything a result depends on besides the tokens."""
    # A program that does not say what its prefix computes keeps its results to itself.
    computed = manifest.prefix_sha256 or hashlib.sha256(manifest.to_json().encode()).hexdigest()
    return hashlib.sha256(json.dumps([_FORMAT, engine, computed]).encode()).hexdigest()[:16]


def _pack(hidden: FloatArray) -> bytes:
    """Round to f16, scaled down by a power of two where a value is too large for it."""
    peak = float(np.abs(hidden).max(initial=0.0)) / float(np.finfo(np.float16).max)
    exponent = int(np.ceil(np.log2(peak))) if 1.0 < peak < np.inf else 0
    values = _EXPONENT.pack(exponent) + np.ldexp(hidden, -exponent).astype("<f2").tobytes()
    return _CHECKSUM.pack(zlib.crc32(values)) + values


def _unpack(raw: bytes, length: int, width: int) -> FloatArray | None:
    """Undo `_pack`; None if this is not what it wrote for f32[length, width]."""
    if (
        len(raw) != _HEADER_BYTES + 2 * length * width
        or _CHECKSUM.pack(zlib.crc32(raw[_CHECKSUM.size :])) != raw[: _CHECKSUM.size]
    ):
        return None
    (exponent,) = _EXPONENT.unpack_from(raw, _CHECKSUM.size)
    values = np.frombuffer(raw, dtype="<f2", offset=_HEADER_BYTES).reshape(length, width)
    result: FloatArray = np.ldexp(values.astype(np.float32), exponent)
    return result


def _used(row: IntArray, label_pos: IntArray, pad: int) -> int:
    """Positions of a row anything can depend on: up to its last token that is not padding, or its last label."""
    tokens = np.flatnonzero(row != pad)
    return max(int(tokens[-1]) + 1 if len(tokens) else 1, int(label_pos.max()) + 1)
