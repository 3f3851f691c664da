"""Parts of a .pte one by one: two files are compared part by part, and what differs has a name.

Numbers below are field positions in ExecuTorch's program.fbs, as in `prgec.core.contract.pte`.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from flatbuffers import number_types
from flatbuffers.table import Table

from prgec.core.contract.flatbuffer import longs, scalar, table, tables, text
from prgec.core.contract.pte import SEGMENT, program_bytes
from prgec.errors import ProgramError

_HEADER = struct.Struct("<4sIQQ")
_STRUCTURE = "structure of the methods"
_END = "what follows the weights: checksums"


def read_sections(path: Path) -> dict[str, str]:
    """Return the SHA-256 of every part of a program, by a name that the same part has in another file.

    Raises:
        ProgramError: If the file is missing, not an ExecuTorch program with segments, or damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return {name: hashlib.sha256(part).hexdigest() for name, part in _parts(view)}
    except FileNotFoundError as error:
        raise ProgramError("no such program", where=path) from error
    except (OSError, ValueError, struct.error, IndexError, TypeError, UnicodeDecodeError, OverflowError) as error:
        raise ProgramError("the program is damaged", where=path, hint="copy or compile it again") from error


def _parts(view: mmap.mmap) -> Iterator[tuple[str, bytes]]:
    _, _, _, base = _HEADER.unpack_from(view, 8)
    structure = bytes(view[: program_bytes(view)])
    root = Table(structure, struct.unpack_from("<I", structure, 0)[0])
    yield _STRUCTURE, structure
    places = [
        (base + scalar(each, 0, number_types.Uint64Flags), scalar(each, 1, number_types.Uint64Flags))
        for each in tables(root, 4)
    ]
    named: dict[int, str] = {}
    number = 0
    for plan in tables(root, 1):
        for count, delegate in enumerate(tables(plan, 7), start=1):
            reference = table(delegate, 1)
            if reference is not None and scalar(reference, 0, number_types.Int8Flags) == SEGMENT:
                named[scalar(reference, 1, number_types.Uint32Flags)] = f"delegate {count} of {text(plan, 0)}"
    for number, each in enumerate(tables(root, 7), start=1):
        named[scalar(each, 1, number_types.Uint32Flags)] = f"weight {number} of the delegates"
    constants = table(root, 5)
    of_kernels = scalar(constants, 0, number_types.Uint32Flags) if constants is not None else -1
    end = program_bytes(view)
    for index, (start, size) in enumerate(places):
        part = bytes(view[start : start + size])
        end = max(end, start + size)
        if index == of_kernels and constants is not None and index not in named:
            yield from _constants(part, longs(constants, 1))
        else:
            yield f"{named.get(index, f'segment {index}')}, {size:,} bytes", part
    yield _END, bytes(view[end:])


def _constants(part: bytes, offsets: list[int]) -> Iterator[tuple[str, bytes]]:
    """The constants that kernels read."""
    starts = sorted(set(offsets)) + [len(part)]
    for number, (start, stop) in enumerate(zip(starts, starts[1:], strict=False), start=1):
        if stop > start:
            yield f"constant {number} of the kernels, {stop - start:,} bytes", part[start:stop]
