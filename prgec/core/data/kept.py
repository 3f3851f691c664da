"""Sequences of many small values as bytes: in memory while they are few, in a temporary file beyond that."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar, overload

from prgec.errors import DataError

Value = TypeVar("Value")

# Bytes in memory before they are written out.
_BUFFER_BYTES = 32 << 20


class Kept(Sequence[Value], Generic[Value]):
    """Values in the order in which they were added, made again each time they are read.

    The temporary file has no name and goes with the object.

    Args:
        pack: Value to bytes.
        unpack: Bytes to an equal value.
        values: The first ones.

    Raises:
        DataError: If the temporary file cannot be written.

    >>> words = Kept(str.encode, bytes.decode, ["one", "two"])
    >>> words[1], len(words)
    ('two', 2)
    """

    def __init__(
        self, pack: Callable[[Value], bytes], unpack: Callable[[bytes], Value], values: Iterable[Value] = ()
    ) -> None:
        self._pack, self._unpack = pack, unpack
        self._ends = array("Q", [0])
        self._buffer = bytearray()
        self._written = 0
        self._file: int | None = None
        for value in values:
            self.append(value)

    def append(self, value: Value) -> None:
        """Add a value at the end."""
        self._buffer += self._pack(value)
        self._ends.append(self._written + len(self._buffer))
        if len(self._buffer) >= _BUFFER_BYTES:
            self._write_out()

    def packed(self) -> Iterator[bytes]:
        """Yield the bytes of each value."""
        return (self._bytes(index) for index in range(len(self)))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> list[Value]: ...
    def __getitem__(self, index: int | slice) -> Value | list[Value]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        return self._unpack(self._bytes(place))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def _bytes(self, index: int) -> bytes:
        start, end = self._ends[index], self._ends[index + 1]
        if self._file is not None and start < self._written:
            return os.pread(self._file, end - start, start)
        return bytes(self._buffer[start - self._written : end - self._written])

    def _write_out(self) -> None:
        try:
            if self._file is None:
                self._file = _nameless_file()
                weakref.finalize(self, os.close, self._file)
            rest = memoryview(self._buffer)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            raise DataError(
                f"cannot keep the rows in a temporary file: {error.strerror or error}",
                where=tempfile.gettempdir(),
                hint="make room there, or set TMPDIR to a folder that has some",
            ) from error
        del rest
        self._written += len(self._buffer)
        self._buffer = bytearray()


def _nameless_file() -> int:
    file, name = tempfile.mkstemp(prefix="prgec-rows-")
    with contextlib.suppress(OSError):
        os.unlink(name)
    return file
