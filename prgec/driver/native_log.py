"""Catch what C++ libraries write to file descriptor 2, which Python's own redirection cannot see."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator

logger = logging.getLogger(__name__)


class NativeLog:
    """Text that native code wrote while it was captured.

    Attributes:
        text: Everything written, complete once the `with` block has ended.
    """

    def __init__(self) -> None:
        self.text = ""

    def last_error(self) -> str:
        """Return the last line, without the `[file.cpp:123]` in front; empty if nothing was written."""
        lines = self.text.strip().splitlines()
        return lines[-1].partition("] ")[2] or lines[-1] if lines else ""


@contextlib.contextmanager
def captured_stderr() -> Iterator[NativeLog]:
    """Divert file descriptor 2 into a `NativeLog`; the lines also become debug log records afterwards.

    Only for short stretches without a live display: the whole process writes there meanwhile.
    """
    log = NativeLog()
    sys.stderr.flush()
    try:
        saved = os.dup(2)
    except OSError:  # the process was started with stderr closed: nothing to keep clean
        yield log
        return
    with tempfile.TemporaryFile() as scratch:
        os.dup2(scratch.fileno(), 2)
        try:
            yield log
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            scratch.seek(0)
            log.text = scratch.read().decode("utf-8", errors="replace")
            for line in log.text.splitlines():
                logger.debug("native: %s", line)
