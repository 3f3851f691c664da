"""Checksums of a program's parts, in a table after it: damage is reported with its place before anything runs.

ExecuTorch reads as many bytes of a .pte as its header names. After them comes a table, as JSON, then its length, its
own CRC-32 and eight letters by which it is found from the end of the file. Parts follow each other without a gap, so
that every byte counts. docs/decisions/013-checksums.md says why, and why they are not longer.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from prgec.core.contract.layout import WEIGHTS, part_starts
from prgec.errors import ProgramError

_TRAILER = struct.Struct("<II8s")  # bytes of the table, their CRC-32, magic
_MAGIC = b"PRGESUMS"
# CRC-32 finds any two wrong bits in half a GiB, more of them all but once in four thousand million.
_MAX_PART_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 20
_HINT = "copy or compile it again"


@dataclass(frozen=True)
class Part:
    """Bytes that follow each other in a file.

    Attributes:
        name: Name of the bytes, for people.
        size: How many.
        crc32: Their CRC-32.
    """

    name: str
    size: int
    crc32: int


@dataclass(frozen=True)
class Checksums:
    """The table.

    Attributes:
        parts: Parts of the .pte, up to the table.
        data: Parts of the file of weights beside it; empty for none.
    """

    parts: tuple[Part, ...]
    data: tuple[Part, ...]

    def check(self, program: Path, only: Collection[str] = ()) -> None:
        """Compare a .pte with the table.

        Args:
            program: The .pte the table was read from.
            only: Names of parts; empty for all.

        Raises:
            ProgramError: Naming the first part that differs.
        """
        _check(program, self.parts, only)

    def check_data(self, data: Path) -> None:
        """Compare the file of weights with the table.

        Raises:
            ProgramError: If it differs.
        """
        _check(data, self.data, ())


def append_checksums(program: Path, data: Path | None) -> None:
    """Append the table to a complete .pte."""
    size = program.stat().st_size
    checksums = Checksums(
        tuple(_parts(program, part_starts(program), size)),
        tuple(_parts(data, [(0, WEIGHTS)], data.stat().st_size)) if data is not None else (),
    )
    table = json.dumps(asdict(checksums), separators=(",", ":")).encode()
    with program.open("ab") as file:
        file.write(table + _TRAILER.pack(len(table), zlib.crc32(table), _MAGIC))


def read_checksums(program: Path) -> Checksums | None:
    """Return the table of a .pte; None where there is none, as in programs of earlier versions.

    Raises:
        ProgramError: If it is damaged, or the file is not as long as it says.
        OSError: If the file cannot be read.
    """
    with program.open("rb") as file:
        size = file.seek(0, 2)
        if size < _TRAILER.size:
            return None
        file.seek(size - _TRAILER.size)
        table_bytes, crc32, magic = _TRAILER.unpack(file.read(_TRAILER.size))
        if magic != _MAGIC:
            return None
        end = size - _TRAILER.size - table_bytes
        file.seek(max(0, end))
        table = file.read(table_bytes)
    if zlib.crc32(table) == crc32:
        checksums = _parse(table)
        if checksums is not None and sum(part.size for part in checksums.parts) == end:
            return checksums
    raise ProgramError("the program is damaged: its table of checksums is not whole", where=program, hint=_HINT)


def _parse(table: bytes) -> Checksums | None:
    try:
        raw: Any = json.loads(table)
        parts, data = (tuple(Part(**part) for part in raw[key]) for key in ("parts", "data"))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    is_good = all(
        isinstance(part.name, str) and type(part.size) is int and part.size > 0 and type(part.crc32) is int
        for part in (*parts, *data)
    )
    return Checksums(parts, data) if is_good else None


def _parts(path: Path, starts: list[tuple[int, str]], size: int) -> Iterator[Part]:
    """Neighbours of one name are one part, and none is too long for its checksum."""
    with path.open("rb") as file:
        merged = [start for index, start in enumerate(starts) if index == 0 or start[1] != starts[index - 1][1]]
        ends = [start for start, _ in merged[1:]] + [size]
        for (start, name), end in zip(merged, ends, strict=True):
            for place in range(start, end, _MAX_PART_BYTES):
                length = min(_MAX_PART_BYTES, end - place)
                yield Part(name, length, _crc32(file, length))


def _check(path: Path, parts: tuple[Part, ...], only: Collection[str]) -> None:
    with path.open("rb") as file:
        start = 0
        for part in parts:
            end = start + part.size
            if not only or part.name in only:
                file.seek(start)
                if _crc32(file, part.size) != part.crc32:
                    raise ProgramError(
                        f"the program is damaged: {part.name}, bytes {start} to {end - 1}, not as compiled",
                        where=path,
                        hint=_HINT,
                    )
            start = end


def _crc32(file: BufferedReader, length: int) -> int:
    """Return the CRC-32 of the next bytes of a file, read in pieces: a program may be larger than memory."""
    crc, buffer = 0, memoryview(bytearray(_CHUNK_BYTES))
    while length > 0:
        read = file.readinto(buffer[: min(length, _CHUNK_BYTES)])
        if not read:
            break
        crc = zlib.crc32(buffer[:read], crc)
        length -= read
    return crc
