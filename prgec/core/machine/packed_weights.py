"""The folder where drivers keep weights as XNNPACK packs them: what is in it, and how it is emptied.

Each program, processor and version of ExecuTorch has a file of weights and beside it a seal, which says that the file
is whole and of which program, and which a process locks for as long as it uses the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prgec.core.machine.files import cache_folder

_FOLDER = "packed"
_WEIGHTS, _SEAL = ".xnn", ".seal"
_NAME = re.compile(r"[0-9a-f]{64}")
_SEALED = re.compile(r"prge-packed \d+ \d+ [0-9a-f]{8}\n(?P<program>[^\n]*)")
# Longer than any seal: a path has at most 4096 bytes.
_MAX_SEAL_BYTES = 1 << 14
_SECONDS_A_DAY = 86400


@dataclass(frozen=True, kw_only=True)
class PackedFile:
    """Packed weights of one program.

    Attributes:
        path: Where they lie.
        program: The .pte they were packed for; empty where that is not known.
        num_bytes: Their size.
        days: Since a driver last began to use them.
        in_use: Whether one does now.
    """

    path: Path
    program: str
    num_bytes: int
    days: float
    in_use: bool


@dataclass(frozen=True)
class Cleared:
    """The effect of clearing.

    Attributes:
        files: Programs whose weights are gone.
        num_bytes: Their size.
        in_use: Programs whose weights stay because a driver uses them.
    """

    files: int
    num_bytes: int
    in_use: int


def packed_folder() -> Path | None:
    """Return the folder of the user, whether it is there or not; None where the environment names none."""
    cache = cache_folder()
    return None if cache is None else cache / _FOLDER


def list_packed(folder: Path) -> list[PackedFile]:
    """Return what a folder has, last used first; nothing where there is no such folder.

    Raises:
        OSError: If the folder cannot be read.
    """
    found = [_read(folder, stem) for stem in _stems(folder)]
    return sorted(found, key=lambda each: (each.days, each.path))


def clear_packed(folder: Path, older_than_days: float = 0.0) -> Cleared:
    """Remove packed weights that no driver uses, and nothing else.

    Args:
        folder: The folder.
        older_than_days: Keep what was used since.

    Raises:
        OSError: If the folder cannot be read, or a file not be removed.
    """
    files = num_bytes = in_use = 0
    for stem in _stems(folder):
        each = _read(folder, stem)
        if each.days < older_than_days:
            continue
        with _held(folder / (stem + _SEAL)) as is_held:
            if not is_held:
                in_use += 1
                continue
            # The seal goes last: a file without one is packed again, and one that is half gone has none.
            for suffix in (_WEIGHTS, _SEAL):
                (folder / (stem + suffix)).unlink(missing_ok=True)
        files, num_bytes = files + 1, num_bytes + each.num_bytes
    return Cleared(files, num_bytes, in_use)


def _stems(folder: Path) -> list[str]:
    """Names of programs; what is called otherwise is not the driver's."""
    if not folder.is_dir():
        return []
    paths = (path for path in folder.iterdir() if path.suffix in (_WEIGHTS, _SEAL) and not path.is_symlink())
    return sorted({path.stem for path in paths if _NAME.fullmatch(path.stem)})


def _read(folder: Path, stem: str) -> PackedFile:
    weights, seal = folder / (stem + _WEIGHTS), folder / (stem + _SEAL)
    stats = [path.stat() for path in (weights, seal) if path.is_file()]
    with _held(seal) as is_held:
        pass
    # A driver touches the seal when it begins.
    days = max(0.0, time.time() - max(stat.st_mtime for stat in stats)) / _SECONDS_A_DAY if stats else 0.0
    return PackedFile(
        path=weights,
        program=_program_of(seal),
        num_bytes=sum(stat.st_size for stat in stats),
        days=days,
        in_use=not is_held,
    )


def _program_of(seal: Path) -> str:
    try:
        with seal.open("rb") as file:
            found = _SEALED.match(file.read(_MAX_SEAL_BYTES).decode("utf-8", "replace"))
    except OSError:
        return ""
    return "".join(char if char.isprintable() else "?" for char in found["program"]) if found else ""


@contextlib.contextmanager
def _held(seal: Path) -> Iterator[bool]:
    """Hold the lock of a seal while the block runs; gives False where a driver has it."""
    try:
        descriptor = os.open(seal, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # without a seal nobody uses the file
        yield True
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = True
    except OSError:
        is_held = False
    try:
        yield is_held
    finally:
        os.close(descriptor)
