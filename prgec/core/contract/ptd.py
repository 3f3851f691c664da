"""The file of weights beside a program, where a backend keeps them out of the .pte: by name, checked by content."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from prgec.errors import ProgramError

SUFFIX = ".ptd"
_SAMPLE_BYTES = 1 << 20


def data_path(program: Path) -> Path:
    """Return where the data file of a program belongs: the same name with another suffix."""
    return program.with_suffix(SUFFIX)


def fingerprint(path: Path) -> str:
    """Return a SHA-256 over a file's size, first and last MiB: gigabytes are not read twice to open a program."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, size - _SAMPLE_BYTES), os.SEEK_SET)
        digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def find_data(program: Path, expected: str) -> Path:
    """Return the data file of a program.

    Args:
        program: The .pte.
        expected: Fingerprint from its manifest.

    Raises:
        ProgramError: If the file is missing or belongs to another program.
    """
    path = data_path(program)
    if not path.is_file():
        raise ProgramError(
            f"the program's weights are missing: expected {path.name} beside it",
            where=program,
            hint="prgec compile writes both files; copy both",
        )
    if fingerprint(path) != expected:
        raise ProgramError(
            f"{path.name} belongs to another program",
            where=program,
            hint="copy the .pte and the .ptd of one compilation together",
        )
    return path
