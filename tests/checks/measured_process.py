"""A Python process of its own, and the memory that it takes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from prgec.lab.bench.memory import Peak, watch


def run_measured(arguments: Sequence[object], environment: Mapping[str, str] | None = None) -> tuple[str, Peak]:
    """Run Python; return what it prints and its memory at its peak.

    Args:
        arguments: Arguments of the interpreter.
        environment: Variables besides those of this process.

    Raises:
        SystemExit: If it fails, with what it wrote.
    """
    command = [sys.executable, *map(str, arguments)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, stdout=out, stderr=errors, env={**os.environ, **(environment or {})}) as process:
            peak = watch(process)
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}\n{errors.read().decode(errors='replace')}")
        return out.read().decode(), peak
