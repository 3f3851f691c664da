"""Memory of this machine and of this process, as Linux counts it."""

from __future__ import annotations

from pathlib import Path

_UNIT = 1024  # /proc counts in kB


def available_memory_bytes() -> int:
    """Memory new processes can have without swapping, by the kernel's own estimate."""
    return _sizes(Path("/proc/meminfo"))["MemAvailable"]


def total_memory_bytes() -> int:
    """Memory of the machine."""
    return _sizes(Path("/proc/meminfo"))["MemTotal"]


def resident_memory_bytes() -> int:
    """Memory this process holds now."""
    return _sizes(Path("/proc/self/status"))["VmRSS"]


def _sizes(path: Path) -> dict[str, int]:
    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    pairs = (line.split(":", 1) for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) * _UNIT for name, value in pairs}
