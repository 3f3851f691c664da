"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """Ask Linux to end this process when its parent is gone, however that went: a SIGKILL leaves no time to end others.

    Args:
        parent_pid: Process that started this one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # A parent that was killed before this line no longer causes a signal.
    if os.getppid() != parent_pid:
        sys.exit(1)
