"""Describes where and with what a measurement was made."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from prgec.core.machine.versions import installed_versions


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory, system, versions and the load others put on the machine, as JSON types."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "load_1min": round(os.getloadavg()[0], 2),
        "versions": {"python": platform.python_version(), **installed_versions()},
    }


def machine_name() -> str:
    """Processor and the cores this process may use: what a time depends on most."""
    return f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
