"""Compiled programs that are kept: one folder a program, whole or absent, safe with several processes.

A folder is made beside its place and renamed, so a reader sees all of it or nothing. A copy is compared with the hash
in the record while it is made; a folder that does not agree is removed, as if it had never been there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from prgec.compiler.plan.units import parse_bytes
from prgec.compiler.result import CompileResult
from prgec.core.contract.ptd import data_path
from prgec.core.machine.files import cache_folder, rename
from prgec.errors import UsageError

LIMIT_VARIABLE = "PRGEC_CACHE_LIMIT"
DEFAULT_LIMIT_BYTES = 10 * 10**9
_FOLDER = "programs"
_RECORD = "record.json"
_PROGRAM = "program.pte"
_NAME = re.compile(r"[0-9a-f]{64}")
_SCRATCH = ".new-"
_STALE_SECONDS = 86_400.0
_SECONDS_A_DAY = 86_400.0
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class CachedProgram:
    """One kept program.

    Attributes:
        folder: Its folder.
        title: Model, method and backend.
        num_bytes: Size of all its files.
        days: Time since its last use.
    """

    folder: Path
    title: str
    num_bytes: int
    days: float


class ProgramCache:
    """A folder of compiled programs.

    Args:
        folder: The folder; made when the first program is kept.
        limit_bytes: Most that all programs may take; those unused for longest are removed first. 0 keeps none.
    """

    def __init__(self, folder: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    @classmethod
    def of_user(cls) -> ProgramCache | None:
        """The cache of this user; None where the environment names no folder.

        Raises:
            UsageError: If `PRGEC_CACHE_LIMIT` is not a size.
        """
        folder = cache_folder()
        return None if folder is None else cls(folder / _FOLDER, _limit_of(os.environ.get(LIMIT_VARIABLE, "")))

    def copy_to(self, key: str, path: Path) -> CompileResult | None:
        """Copy a program, with its data file if it has one; None where it is not kept or is damaged.

        Raises:
            OSError: If `path` cannot be written; what was there stays.
        """
        place = self.folder / key
        try:
            record = json.loads((place / _RECORD).read_text(encoding="utf-8"))
            hashes, result = record["sha256"], CompileResult.of_copy(record["result"], path)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        targets = {_PROGRAM: path, data_path(Path(_PROGRAM)).name: data_path(path)}
        with contextlib.ExitStack() as stack:
            copies: list[tuple[Path, Path]] = []
            # The data file is renamed first: a .pte never lacks it.
            for name in sorted(hashes, reverse=True):
                scratch = stack.enter_context(_scratch_beside(targets[name]))
                if not _copy_checked(place / name, scratch, hashes[name]):
                    shutil.rmtree(place, ignore_errors=True)
                    return None
                copies.append((scratch, targets[name]))
            for scratch, target in copies:
                rename(scratch, target)
        with contextlib.suppress(OSError):
            os.utime(place / _RECORD)
        return result

    def keep(self, key: str, result: CompileResult) -> None:
        """Keep a copy of a program that was just compiled; older ones make room for it.

        A program larger than the limit, or than a tenth of the free space on the disk, is not kept.

        Raises:
            OSError: If the folder cannot be written; nothing of the program is kept then.
        """
        files = {_PROGRAM: result.path, data_path(Path(_PROGRAM)).name: data_path(result.path)}
        files = {name: path for name, path in files.items() if path.is_file()}
        needed = sum(path.stat().st_size for path in files.values())
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if needed > min(self.limit_bytes, shutil.disk_usage(self.folder).free / 10):
            return
        self._make_room(self.limit_bytes - needed)
        scratch = Path(tempfile.mkdtemp(dir=self.folder, prefix=_SCRATCH))
        try:
            hashes = {name: _copy(path, scratch / name) for name, path in files.items()}
            record = {"title": _title(result), "sha256": hashes, "result": result.to_json()}
            (scratch / _RECORD).write_text(json.dumps(record), encoding="utf-8")
            with contextlib.suppress(OSError):  # Another process kept the same program meanwhile.
                scratch.rename(self.folder / key)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def programs(self) -> list[CachedProgram]:
        """Kept programs, last used first.

        Raises:
            OSError: If the folder cannot be read.
        """
        if not self.folder.is_dir():
            return []
        found = [_read(each) for each in self.folder.iterdir() if _NAME.fullmatch(each.name)]
        return sorted((each for each in found if each is not None), key=lambda each: (each.days, each.folder))

    def clear(self, older_than_days: float = 0.0) -> tuple[int, int]:
        """Remove programs unused for some days, and what killed processes left; return their number and their bytes.

        Raises:
            OSError: If the folder cannot be read.
        """
        removed = [each for each in self.programs() if each.days >= older_than_days]
        for each in removed:
            shutil.rmtree(each.folder, ignore_errors=True)
        self._remove_stale()
        return len(removed), sum(each.num_bytes for each in removed)

    def _make_room(self, limit_bytes: int) -> None:
        self._remove_stale()
        total = 0
        for each in self.programs():
            total += each.num_bytes
            if total > limit_bytes:
                shutil.rmtree(each.folder, ignore_errors=True)

    def _remove_stale(self) -> None:
        """Remove folders that no process can still be writing."""
        for each in self.folder.glob(f"{_SCRATCH}*"):
            with contextlib.suppress(OSError):
                if time.time() - each.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(each, ignore_errors=True)


def _limit_of(text: str) -> int:
    if not text:
        return DEFAULT_LIMIT_BYTES
    if text.strip() == "0":
        return 0
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise UsageError(
            f"{LIMIT_VARIABLE} is not a size: {text!r}", hint="such as 20G, or 0 to keep nothing"
        ) from error


def _title(result: CompileResult) -> str:
    m = result.manifest
    return f"{m.model}, {m.method}, {m.backend}"


def _read(folder: Path) -> CachedProgram | None:
    """One kept program; None where another process removes it just now."""
    try:
        record = folder / _RECORD
        num_bytes = sum(each.stat().st_size for each in folder.iterdir())
        days = max(0.0, time.time() - record.stat().st_mtime) / _SECONDS_A_DAY
        title = str(json.loads(record.read_text(encoding="utf-8"))["title"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        title = "damaged"
    return CachedProgram(folder=folder, title=title, num_bytes=num_bytes, days=days)


@contextlib.contextmanager
def _scratch_beside(path: Path) -> Iterator[Path]:
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield scratch
    finally:
        scratch.unlink(missing_ok=True)


def _copy_checked(source: Path, target: Path, sha256: str) -> bool:
    """Copy a file of the cache; return whether it was there and whole."""
    try:
        file = source.open("rb")
    except OSError:
        return False
    with file:
        return _copy_open(file, target) == sha256


def _copy(source: Path, target: Path) -> str:
    with source.open("rb") as file:
        return _copy_open(file, target)


def _copy_open(file: BinaryIO, target: Path) -> str:
    """Copy a file to disk and return the hash of what was written."""
    digest = hashlib.sha256()
    with target.open("wb") as copy:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    return digest.hexdigest()
