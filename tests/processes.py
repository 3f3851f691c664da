"""Other processes: whether they have ended, and waiting for it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def has_ended(pid: int) -> bool:
    """Return whether a process is over, waited for or not."""
    try:
        # The name in parentheses may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return whether a process ends by itself in some time."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
