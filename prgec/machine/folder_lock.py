"""One run at a time in a folder: an advisory lock on the folder itself, which ends with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType

from prgec.errors import UsageError


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
                raise UsageError(
                    "another run is writing to this folder",
                    where=self._path,
                    hint="wait until it ends, or name another --out",
                ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # not empty, or not ours to remove
            for folder in self._made:
                folder.rmdir()
        os.close(self._descriptor)
