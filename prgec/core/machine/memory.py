"""Memory of this machine and of processes, as Linux counts it; everything that reads it from /proc is here."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_UNIT = 1024  # /proc counts in kB
_RESET_PEAK = b"5"

# malloc.h: M_MMAP_THRESHOLD, the size from which a block is mapped by itself.
_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True)
class ProcessMemory:
    """The memory of a process; all zero for one that is just ending.

    Attributes:
        rss_bytes: Resident now, mapped files included.
        peak_rss_bytes: The most that ever was, as the kernel recorded it.
        anon_bytes: The part resident now that no file could give back.
        file_bytes: The part resident now that is pages of mapped files.
    """

    rss_bytes: int
    peak_rss_bytes: int
    anon_bytes: int
    file_bytes: int


def available_memory_bytes() -> int:
    """Memory new processes can have without swapping, by the kernel's own estimate."""
    return _sizes(Path("/proc/meminfo"))["MemAvailable"]


def total_memory_bytes() -> int:
    """Memory of the machine."""
    return _sizes(Path("/proc/meminfo"))["MemTotal"]


def resident_memory_bytes() -> int:
    """Memory this process holds now."""
    return process_memory().rss_bytes


def process_memory(pid: int | None = None) -> ProcessMemory:
    """Return what a process holds, this one without a pid."""
    try:
        sizes = _sizes(Path(f"/proc/{'self' if pid is None else pid}/status"))
    except OSError:
        sizes = {}
    return ProcessMemory(*(sizes.get(name, 0) for name in ("VmRSS", "VmHWM", "RssAnon", "RssFile")))


def give_back_freed() -> None:
    """Give the system what this process has freed; glibc keeps it for later, other libraries of C may not."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def map_large_blocks() -> None:
    """Give large blocks of this process back to the system the moment they are freed, from now on.

    glibc raises the size from which it maps blocks as they come and go, up to 32 MB, and keeps freed ones in a heap
    that nothing large fits into again: after the passes over a 135M model it holds 1.4 GB for nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)


def settled_memory() -> ProcessMemory:
    """Return what this process holds once garbage and what was freed are given back: they would hide growth."""
    gc.collect()
    give_back_freed()
    return process_memory()


class Growth:
    """The most memory this process holds above what it held when this was made, code and mapped files left out.

    The kernel keeps one high-water mark a process, of resident memory; `pause` and `go_on` leave out what is not to be
    counted. Pages of files that are used for the first time are subtracted. Pages of a mapped file that are written to,
    as weights may be, become memory of the process in their own place: no growth.

    Args:
        held_bytes: The part of the memory it already holds that counts all the same.

    Attributes:
        bytes: The growth seen so far, up to the last `pause`.
    """

    def __init__(self, held_bytes: int = 0) -> None:
        self.bytes = 0
        self._held_bytes = held_bytes
        self._start = settled_memory()
        self.go_on()

    def go_on(self) -> None:
        """Count from here."""
        Path("/proc/self/clear_refs").write_bytes(_RESET_PEAK)

    def pause(self) -> None:
        """Take what was counted since `go_on`; what follows does not count."""
        now = process_memory()
        files = max(0, now.file_bytes - self._start.file_bytes)
        self._note(now.peak_rss_bytes - self._start.rss_bytes - files)

    def _note(self, grown_bytes: int) -> None:
        self.bytes = max(self.bytes, grown_bytes + self._held_bytes)


class SampledGrowth(Growth):
    """The same of a process that maps files far larger than what it computes with: anonymous memory, looked at often.

    The kernel's mark is of resident memory. Where pages of files come and go, as while weights are packed into a file,
    those of its moment are unknown afterwards. A process of its own looks, some thousand times a second: a thread would
    wait for this one's lock of Python, and miss what is held for a moment, as two sizes of an engine's workspace are
    while it grows.
    """

    def go_on(self) -> None:
        """Count from here."""
        command = [sys.executable, "-I", "-S", "-c", _WATCH, str(os.getpid())]
        self._watch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._watch.stdout is not None
        self._watch.stdout.readline()

    def pause(self) -> None:
        """Take what was counted since `go_on`; what follows does not count."""
        most, _ = self._watch.communicate(b"\n")
        self._note(max(int(most), process_memory().anon_bytes) - self._start.anon_bytes)


# Resident pages less those of files, until something is written to it or its writer ends: prints a line at its start,
# and the most at its end.
_WATCH = """
import os, select, sys
statm, page, most = os.open(f"/proc/{sys.argv[1]}/statm", os.O_RDONLY), os.sysconf("SC_PAGE_SIZE"), 0
print(flush=True)
while True:
    _, resident, shared, *_ = os.pread(statm, 200, 0).split()
    most = max(most, int(resident) - int(shared))
    if select.select([0], [], [], 0.0002)[0]:
        break
try:
    os.write(1, b"%d" % (most * page))
except BrokenPipeError:
    pass  # The process that was looked at is no more.
"""


def _sizes(path: Path) -> dict[str, int]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = (line.split(":", 1) for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) * _UNIT for name, value in pairs}
