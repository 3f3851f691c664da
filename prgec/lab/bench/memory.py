"""Measures the memory of one variant alone, in a process of its own, from outside.

Anonymous memory is what a device must have; file pages of a mapped program are in `peak_rss_bytes` too, but can be
dropped and read again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from prgec.core.machine.memory import process_memory
from prgec.errors import BackendError
from prgec.lab.bench.job import Job

_INTERVAL_S = 0.01


@dataclass(frozen=True)
class Peak:
    """High-water marks of a process.

    Attributes:
        anon_bytes: Largest amount of anonymous memory seen, sampled every 10 ms.
        rss_bytes: Largest resident set, as the kernel recorded it.
    """

    anon_bytes: int
    rss_bytes: int


def measure(job: Job) -> Peak:
    """Run a few steps of `job` in a fresh process and watch it.

    Raises:
        BackendError: If the process fails.
    """
    with tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "prgec.lab.bench.child", job.to_json()]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as process:
            peak = watch(process)
        if process.returncode:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"it ended with code {process.returncode}"
            raise BackendError(f"cannot measure the memory of {job.variant.name}: {reason}")
    return peak


def watch(process: subprocess.Popen[bytes]) -> Peak:
    """Sample a process until it ends."""
    anon = rss = 0
    while process.poll() is None:
        now = process_memory(process.pid)
        anon = max(anon, now.anon_bytes)
        rss = max(rss, now.peak_rss_bytes)
        time.sleep(_INTERVAL_S)
    return Peak(anon, rss)
