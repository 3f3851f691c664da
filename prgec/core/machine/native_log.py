"""Catch what C++ libraries write to file descriptors 1 and 2, which Python's own redirection cannot see."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import TextIO

logger = logging.getLogger(__name__)


class NativeLog:
    """Text that native code wrote while it was captured.

    Attributes:
        text: Everything written, complete once the `with` block has ended.
    """

    def __init__(self) -> None:
        self.text = ""

    def last_error(self) -> str:
        """Return the last line, without the leading `[file.cpp:123]`; empty if nothing was written."""
        lines = self.text.strip().splitlines()
        return lines[-1].partition("] ")[2] or lines[-1] if lines else ""


@contextlib.contextmanager
def captured_stderr() -> Iterator[NativeLog]:
    """Divert file descriptor 2 into a `NativeLog`; the lines also become debug log records afterwards.

    Only for short stretches without a live display: the whole process writes there meanwhile.
    """
    with _captured(2, sys.stderr) as log:
        yield log


@contextlib.contextmanager
def captured_output() -> Iterator[None]:
    """Divert standard output and standard error, for libraries that chat while they are loaded."""
    with _captured(1, sys.stdout), _captured(2, sys.stderr):
        yield


@contextlib.contextmanager
def _captured(descriptor: int, stream: TextIO) -> Iterator[NativeLog]:
    log = NativeLog()
    stream.flush()
    try:
        saved = os.dup(descriptor)
    except OSError:  # the process was started with it closed: nothing to keep clean
        yield log
        return
    with tempfile.TemporaryFile() as scratch:
        os.dup2(scratch.fileno(), descriptor)
        try:
            yield log
        finally:
            stream.flush()
            os.dup2(saved, descriptor)
            os.close(saved)
            scratch.seek(0)
            log.text = scratch.read().decode("utf-8", errors="replace")
            for line in log.text.splitlines():
                logger.debug("native: %s", line)


@contextlib.contextmanager
def captured_native_stderr() -> Iterator[NativeLog]:
    """Like `captured_stderr`, for long stretches: Python's own stderr, and so a live display, stays where it is."""
    before = sys.stderr
    try:
        aside = os.fdopen(os.dup(before.fileno()), "w", buffering=1, errors="replace")
    except (OSError, ValueError):  # not a file of the system: then it is not file descriptor 2 either
        with captured_stderr() as log:
            yield log
        return
    with captured_stderr() as log, aside:
        sys.stderr = aside
        try:
            yield log
        finally:
            sys.stderr = before
