"""Reads GGUF, llama.cpp's file of a model: what it says of itself and where its tensors lie. It unpacks no weights.

Layout after ggml's docs/gguf.md: magic, version, counts, keys with values, descriptions of tensors, padding, tensors.
Integers are little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prgec.errors import CheckpointError

SUFFIX = ".gguf"
MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_DIMENSIONS = 4
_AGAIN = "download the file again"
_SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
# Type of a tensor: name, elements and bytes of a block. Other types are not read.
BLOCKS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
}


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a file.

    Attributes:
        shape: As in PyTorch, the widest stride first.
        kind: Key of `BLOCKS`.
        offset: Offset of its first byte in the file.
    """

    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def num_bytes(self) -> int:
        """Bytes it takes."""
        _, elements, size = BLOCKS[self.kind]
        return prod(self.shape) // elements * size


@dataclass(frozen=True)
class GgufFile:
    """The header of a file.

    Attributes:
        path: The file.
        metadata: Values by key; arrays of numbers are NumPy's, those of texts lists.
        tensors: Descriptions by name.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @property
    def architecture(self) -> str:
        """Which model it is, by llama.cpp's name."""
        return str(self.metadata.get("general.architecture", "unknown"))

    def blocks(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor, mapped, one row for each of its rows."""
        width = tensor.num_bytes // prod(tensor.shape[:-1])
        shape = (*tensor.shape[:-1], width)
        return np.memmap(self.path, dtype=np.uint8, mode="r", offset=tensor.offset, shape=shape)


def read_gguf(path: Path) -> GgufFile:
    """Read everything but the weights.

    Raises:
        CheckpointError: If it is not a GGUF, of an unknown version, damaged, or cut short.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[: len(MAGIC)] != MAGIC:
                raise CheckpointError("the file is not GGUF: it does not begin with its magic", where=path)
            return _parse(path, _Cursor(data))
    except OSError as error:
        raise CheckpointError(f"cannot read the file: {error.strerror}", where=path) from error
    except (ValueError, struct.error, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"the GGUF file is damaged or cut short: {error}", where=path, hint=_AGAIN) from error


def _parse(path: Path, cursor: _Cursor) -> GgufFile:
    version = cursor.number("<I", start=len(MAGIC))
    if version not in _VERSIONS:
        raise CheckpointError(
            f"the GGUF file has version {version}; this prgec reads {' and '.join(map(str, _VERSIONS))}", where=path
        )
    num_tensors, num_keys = cursor.number("<Q"), cursor.number("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("<I"))
    described = [_tensor(cursor) for _ in range(num_tensors)]
    alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    if alignment < 1:
        raise ValueError(f"its alignment is {alignment}")
    first = -(-cursor.offset // alignment) * alignment
    tensors = {name: GgufTensor(shape, kind, first + offset) for name, shape, kind, offset in described}
    _check(path, tensors, cursor.size)
    return GgufFile(path, metadata, tensors)


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, dimensions = cursor.text(), cursor.number("<I")
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise ValueError(f"{name} has {dimensions} dimensions")
    # ggml counts from the narrowest stride.
    shape = tuple(reversed([cursor.number("<Q") for _ in range(dimensions)]))
    return name, shape, cursor.number("<I"), cursor.number("<Q")


def _check(path: Path, tensors: Mapping[str, GgufTensor], size: int) -> None:
    """Refuse what cannot be unpacked, and what lies beyond the end of the file."""
    for name, tensor in tensors.items():
        if tensor.kind not in BLOCKS:
            raise CheckpointError(
                f"{name} has quantisation type {tensor.kind}, which is not supported",
                where=path,
                hint=f"known: {', '.join(each for each, _, _ in BLOCKS.values())}",
            )
        kind, elements, _ = BLOCKS[tensor.kind]
        if not all(tensor.shape) or tensor.shape[-1] % elements:
            raise ValueError(f"{name} of type {kind} is {list(tensor.shape)}")
        if tensor.offset + tensor.num_bytes > size:
            raise ValueError(f"{name} ends at byte {tensor.offset + tensor.num_bytes}, the file at {size}")


class _Cursor:
    """A place in a file, moved by reading."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.offset = 0
        self.size = len(data)

    def number(self, layout: str, start: int | None = None) -> Any:
        """Return one number."""
        self.offset = self.offset if start is None else start
        (found,) = struct.unpack_from(layout, self._data, self.offset)
        self.offset += struct.calcsize(layout)
        return found

    def text(self) -> str:
        """Return a text that follows its length."""
        return str(self._take(self.number("<Q")), "utf-8")

    def value(self, kind: int) -> Any:
        """Return a value of a type of GGUF's."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array(self.number("<I"), self.number("<Q"))
        if kind not in _SCALARS:
            raise ValueError(f"a value has type {kind}")
        return self.number(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> Any:
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        if kind not in _SCALARS:
            raise ValueError(f"an array has elements of type {kind}")
        element = np.dtype(_SCALARS[kind])
        return np.frombuffer(self._take(count * element.itemsize), dtype=element)

    def _take(self, count: int) -> bytes:
        if count > self.size - self.offset:
            raise ValueError(f"{count} bytes are expected at byte {self.offset} of {self.size}")
        self.offset += count
        return self._data[self.offset - count : self.offset]
