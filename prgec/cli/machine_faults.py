"""Errors of the operating system as one line with a way out: the machine is at fault, and not prgec."""

from __future__ import annotations

import errno
import os

_WRITE_ELSEWHERE = "write to another place, or change its permissions"
# Error number -> what to do.
_HINTS = {
    errno.ENOSPC: "make room there; a run that was interrupted goes on with --resume",
    errno.EDQUOT: "the quota is used up: make room; a run that was interrupted goes on with --resume",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or write to another file system",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.EACCES: _WRITE_ELSEWHERE,
    errno.EPERM: _WRITE_ELSEWHERE,
    errno.EROFS: "the file system is read-only: write to another place",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "the machine has too many files open: end other programs",
    errno.EIO: "the disk reports an error: check it, and copy what is on it",
    errno.ENOENT: "it went while the command ran, or was never there",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EISDIR: "name a file, not a folder",
    errno.ELOOP: "the path leads through links that lead to each other",
    errno.ESTALE: "the file system was unmounted: mount it again",
    errno.ENOMEM: "free memory, or take a smaller --batch-size or --seq-len",
}
_MOST_CHARACTERS = 120


def describe(error: OSError) -> str | None:
    """Return the line for people; None where the error is none of the machine's."""
    hint = _HINTS.get(error.errno or 0)
    if hint is None:
        return None
    name = str(error.filename) if error.filename else ""
    if len(name) > _MOST_CHARACTERS:
        name = f"{name[: _MOST_CHARACTERS // 2]}...{name[-_MOST_CHARACTERS // 2 :]}"
    where = f" ({name})" if name else ""
    return f"{os.strerror(error.errno or 0)}{where}. Hint: {hint}"
