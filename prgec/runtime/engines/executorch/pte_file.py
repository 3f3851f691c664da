"""Check a .pte before the runtime maps it: magic, whether the file was cut short, and its checksums.

The runtime maps the file into memory, where a missing tail is a bus error in the middle of training.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path

from prgec.core.contract.checksums import Checksums, read_checksums
from prgec.errors import ProgramError

# A flatbuffer carries its file identifier in bytes 4 to 8; ExecuTorch's is "ET" and a version.
_IDENTIFIER = slice(4, 6)
_EXTENDED_HEADER = struct.Struct("<4sIQQQ")  # magic, length, program size, segment base, segment data size
_EXTENDED_OFFSET = 8


def check_pte_file(path: Path) -> None:
    """Refuse a path that is not a complete ExecuTorch program.

    Raises:
        ProgramError: If the file is missing, unreadable, of another kind, or shorter than its header says.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_EXTENDED_OFFSET + _EXTENDED_HEADER.size)
        size_bytes = path.stat().st_size
    except FileNotFoundError as error:
        raise ProgramError("no such program", where=path, hint="make one with prgec compile") from error
    except IsADirectoryError as error:
        raise ProgramError("a folder, not a program", where=path, hint="name the .pte") from error
    except OSError as error:
        raise ProgramError(f"cannot read the program: {error.strerror}", where=path) from error
    if head[_IDENTIFIER] != b"ET" or len(head) < _EXTENDED_OFFSET + _EXTENDED_HEADER.size:
        raise ProgramError("not an ExecuTorch program", where=path, hint="expected a .pte made by prgec compile")
    expected = _expected_bytes(head)
    if size_bytes < expected:
        raise ProgramError(
            f"the program is cut short: {size_bytes} of {expected} bytes", where=path, hint="copy or compile it again"
        )


def compare(path: Path, *, verify: bool, only: Collection[str] = ()) -> Checksums | None:
    """Compare a .pte with its table; return the table, None where there is none or nobody wants to know.

    Args:
        path: The .pte.
        verify: Whether anybody does.
        only: Names of parts; empty for all.

    Raises:
        ProgramError: If the file is missing, no program, or differs.
    """
    check_pte_file(path)
    checksums = read_checksums(path) if verify else None
    if checksums is not None:
        checksums.check(path, only)
    return checksums


def _expected_bytes(head: bytes) -> int:
    magic, length, program_bytes, segment_base, segment_bytes = _EXTENDED_HEADER.unpack_from(head, _EXTENDED_OFFSET)
    if magic[:2] != b"eh":
        return 0
    # Headers of 24 bytes predate the last field.
    has_segment_bytes = length >= _EXTENDED_HEADER.size
    return int(max(program_bytes, segment_base + (segment_bytes if has_segment_bytes else 0)))
