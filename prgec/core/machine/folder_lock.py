"""One run at a time in a folder: an advisory lock on the folder itself, which ends with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType

from prgec.errors import UsageError

_LOCKS = Path("/proc/locks")


class FolderLock:
    """Holds a folder while the `with` block runs; the C++ driver respects it, and the other way round.

    The folder is made if it is missing, and removed again if nothing was put into it.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made: list[Path] = []
        self._descriptor = -1

    def __enter__(self) -> FolderLock:
        """Take the lock.

        Raises:
            UsageError: If another process has it.
            OSError: If the folder cannot be made.
        """
        self._made = [folder for folder in (self._path, *self._path.parents) if not folder.exists()]
        self._path.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # File systems without locks run unlocked: better than not at all.
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(self._descriptor)
                process = holder(self._path)
                raise UsageError(
                    "another run is writing to this folder",
                    where=self._path,
                    hint=f"wait until it ends{f' (process {process})' if process else ''}, or name another --out",
                ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # not empty, or not ours to remove
            for folder in self._made:
                folder.rmdir()
        os.close(self._descriptor)


def holder(path: Path) -> int | None:
    """Return the process that holds a folder; None where none does, or it cannot be known. Takes no lock itself."""
    try:
        folder = path.stat()
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    # ORDER: FLOCK ADVISORY WRITE PROCESS MAJOR:MINOR:INODE START END. The device numbers differ from those of `stat` on
    # some systems, and a waiting process has an arrow first.
    found = [words for words in map(str.split, lines) if words[1:2] == ["FLOCK"] and words[3] == "WRITE"]
    processes = [int(words[4]) for words in found if words[5].rpartition(":")[2] == str(folder.st_ino)]
    return next((process for process in processes if _has_open(process, folder)), None)


def _has_open(process: int, folder: os.stat_result) -> bool:
    """Whether a process has a folder open; others of the same number lie on other disks."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(entry.stat(), folder):
                    return True
    return False
