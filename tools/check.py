"""Starts a check of tests/checks with the flags that a command in this folder was given."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent


def start(name: str) -> NoReturn:
    """Become `python -m tests.checks.NAME`; tests are not installed, so the path says where they are."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    os.execve(sys.executable, [sys.executable, "-m", f"tests.checks.{name}", *sys.argv[1:]], environment)
