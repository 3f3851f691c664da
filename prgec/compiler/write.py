"""Writes a finished program: the .pte and, where the backend keeps weights out of it, the .ptd beside it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from prgec.core.contract.checksums import append_checksums
from prgec.core.contract.names import NO_FINGERPRINT
from prgec.core.contract.ptd import data_path, fingerprint
from prgec.errors import InternalError

_CHUNK_BYTES = 1 << 24


def write_program(path: Path, program: Any) -> int:
    """Write a finished ExecuTorch program and return the size of the .pte in bytes.

    Temporary files are renamed in the end, so that each file is either the old one or complete and new. A data file is
    renamed first: a .pte never lacks it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            program.write_to_file(file)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".prgec-") as folder:
            data = _write_data(program, Path(folder))
            if data is not None:
                _insert_fingerprint(temporary, fingerprint(data))
                _sync(data)
            append_checksums(temporary, data)
            if data is not None:
                data.replace(data_path(path))
        _sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path.stat().st_size


def _write_data(program: Any, folder: Path) -> Path | None:
    """Write the program's external data; ExecuTorch names the files itself."""
    program.write_tensor_data_to_file(str(folder))
    files = list(folder.iterdir())
    if len(files) > 1:
        raise InternalError(f"the program has {len(files)} data files; expected at most one")
    return files[0] if files else None


def _insert_fingerprint(program: Path, digest: str) -> None:
    """Replace the stand-in in the manifest: the data are only known once the program around the manifest is."""
    wanted = NO_FINGERPRINT.encode()
    with program.open("r+b") as file:
        position, tail = 0, b""
        while chunk := file.read(_CHUNK_BYTES):
            found = (tail + chunk).find(wanted)
            if found >= 0:
                file.seek(position - len(tail) + found)
                file.write(digest.encode())
                return
            position += len(chunk)
            tail = chunk[-len(wanted) :]
    raise InternalError("the program's manifest has no place for the fingerprint of its data")


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
