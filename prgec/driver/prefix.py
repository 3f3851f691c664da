"""Runs the `prefix` method of a program, and keeps its results on disk so that later epochs skip it.

Letters: B examples a step, N = 2qB rows, T tokens, K label positions, D model width.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prgec.contract import Manifest
from prgec.errors import UsageError

_ENTRY = struct.Struct("<32sQI")
_DATA, _INDEX = "hidden.f16", "hidden.idx"


class HiddenCache:
    """Results of a prefix, one row of tokens each: f16[length, D] in one growing file, with an index beside it.

    A result depends on the frozen weights and the tokens alone, so the folder's name carries the weights' hash and an
    entry's key is the hash of its tokens. Entries are written before they are indexed; one that was cut short by a
    crash is never found.

    Args:
        folder: Parent folder; programs of other weights may share it.
        manifest: The program the results come from.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        first_site = manifest.sites[0].name
        identity = f"{manifest.base_sha256} {manifest.quantize} {manifest.quantize_embedding} {first_site}"
        self._folder = folder / hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._width = manifest.hidden_size
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._entries = self._read_index()
        except OSError as error:
            raise UsageError(f"cannot use the prefix cache: {error.strerror}", where=folder) from error

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float16] | None:
        """Return f16[length, D] of a row of tokens i64[length]; None if it is not kept."""
        entry = self._entries.get(_key(tokens))
        if entry is None:
            return None
        offset, length = entry
        shape = (length, self._width)
        return np.memmap(self._folder / _DATA, dtype=np.float16, mode="r", offset=offset, shape=shape)

    def put(self, tokens: npt.NDArray[np.int64], hidden: npt.NDArray[np.float16]) -> None:
        """Keep f16[length, D] for a row of tokens."""
        with (self._folder / _DATA).open("ab") as data:
            offset = data.tell()
            data.write(hidden.tobytes())
        key = _key(tokens)
        with (self._folder / _INDEX).open("ab") as index:
            index.write(_ENTRY.pack(key, offset, len(hidden)))
        self._entries[key] = (offset, len(hidden))

    def _read_index(self) -> dict[bytes, tuple[int, int]]:
        path = self._folder / _INDEX
        raw = path.read_bytes() if path.is_file() else b""
        size = (self._folder / _DATA).stat().st_size if (self._folder / _DATA).is_file() else 0
        entries = {}
        for key, offset, length in _ENTRY.iter_unpack(raw[: len(raw) - len(raw) % _ENTRY.size]):
            if offset + 2 * length * self._width <= size:
                entries[key] = (offset, length)
        return entries


class PrefixRunner:
    """Gives `forward` its hidden states, computed or kept.

    Args:
        method: The loaded `prefix` method.
        manifest: The program's manifest.
    """

    def __init__(self, method: Any, manifest: Manifest) -> None:
        self._method = method
        self._manifest = manifest
        self._cache: HiddenCache | None = None

    def keep_in(self, folder: Path) -> None:
        """Keep results in `folder` from now on.

        Raises:
            UsageError: If the folder cannot be used.
        """
        self._cache = HiddenCache(folder, self._manifest)

    def hidden(self, tokens_NT: npt.NDArray[np.int64], label_pos_NK: npt.NDArray[np.int64]) -> Any:
        """Return the hidden states of the B examples as a tensor f32[B, T, D].

        With a cache they are rounded to f16 whether kept or fresh, so that every epoch sees the same values.
        """
        import torch

        batch = self._manifest.batch_size
        tokens_BT, label_pos_BK = tokens_NT[:batch], label_pos_NK[:batch]
        if self._cache is None:
            return self._compute(tokens_BT)
        pad = self._manifest.pad_token_id
        rows = [row[: _used(row, labels, pad)] for row, labels in zip(tokens_BT, label_pos_BK, strict=True)]
        kept = [self._cache.get(row) for row in rows]
        if any(each is None for each in kept):
            fresh = self._compute(tokens_BT).numpy().astype(np.float16)
            for index, row in enumerate(rows):
                if self._cache.get(row) is None:
                    self._cache.put(row, fresh[index, : len(row)])
                kept[index] = fresh[index, : len(row)]
        hidden = np.zeros((batch, tokens_BT.shape[1], self._manifest.hidden_size), dtype=np.float32)
        for index, each in enumerate(kept):
            assert each is not None
            hidden[index, : len(each)] = each
        return torch.from_numpy(hidden)

    def _compute(self, tokens_BT: npt.NDArray[np.int64]) -> Any:
        import torch

        (hidden,) = self._method([torch.from_numpy(np.ascontiguousarray(tokens_BT))])
        return hidden


def _used(row: npt.NDArray[np.int64], label_pos: npt.NDArray[np.int64], pad: int) -> int:
    """Positions of a row anything can depend on: up to its last token that is not padding, or its last label."""
    tokens = np.flatnonzero(row != pad)
    return max(int(tokens[-1]) + 1 if len(tokens) else 1, int(label_pos.max()) + 1)


def _key(tokens: npt.NDArray[np.int64]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i8").tobytes()).digest()
