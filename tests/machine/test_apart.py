"""A call in a process of its own ends with its parent process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.processes import has_ended, wait_until

_ASKS = """
import multiprocessing
from prgec.core.machine.apart import call_apart
from tests.machine.test_apart import say_and_sleep
if __name__ == "__main__":
    call_apart(multiprocessing.get_context("{how}"), "sleeping", say_and_sleep)
"""


def say_and_sleep() -> None:
    """Print which process this is, and stay."""
    print(os.getpid(), flush=True)
    time.sleep(60)


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_killed_process_leaves_none(how: str) -> None:
    with subprocess.Popen([sys.executable, "-c", _ASKS.format(how=how)], stdout=subprocess.PIPE, text=True) as asks:
        assert asks.stdout is not None
        child = int(asks.stdout.readline())
        asks.send_signal(signal.SIGKILL)
        asks.wait()
    try:
        wait_until(lambda: has_ended(child), seconds=10)
    finally:
        if not has_ended(child):
            os.kill(child, signal.SIGKILL)
