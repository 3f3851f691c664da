"""Write files so that a reader sees the old content or the new one, never a part; hash them; and where caches go."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from prgec.errors import UsageError


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file through a temporary neighbour and one rename.

    Raises:
        OSError: If the folder is not writable or full; the file is then as it was.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    scratch = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.chmod(0o666 & ~_umask())
        rename(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def rename(path: Path, target: Path) -> None:
    """Give a file another name that survives a power cut, which it does once the folder is on the disk.

    Raises:
        OSError: If the folder is not writable; nothing has changed then.
    """
    path.replace(target)
    with contextlib.suppress(OSError):  # not every file system can sync a folder
        descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_free(path: Path, *, force: bool) -> None:
    """Check that a file may be written: it does not exist, or may be replaced.

    Raises:
        UsageError: If it exists and `force` is not set, or if it is a folder.
    """
    if path.is_dir():
        raise UsageError("the output is a folder", where=path, hint="name a file with -o")
    if path.exists() and not force:
        raise UsageError("the output exists", where=path, hint="name another one with -o, or replace it with --force")


def cache_folder() -> Path | None:
    """Return where this user's machine keeps what can be made again; None where the environment names no place."""
    for variable, below in (("PRGEC_CACHE", ""), ("XDG_CACHE_HOME", "prgec"), ("HOME", ".cache/prgec")):
        if value := os.environ.get(variable):
            return Path(value) / below
    return None


def is_scratch_of(name: str, target: str) -> bool:
    """Return whether a file is the partial `target` of a process that was killed, in either driver."""
    return name.startswith(f".{target}.") or name == f"{target}.partial"


def _umask() -> int:
    # mkstemp makes files for the owner only; results are for whoever the user's umask admits.
    value = os.umask(0)
    os.umask(value)
    return value


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
