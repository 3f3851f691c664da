"""The commit whose code figures are of."""

from __future__ import annotations

import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# A figure follows from these; tests, tools and documents change none.
_CODE = ("prgec", "passes", "backends", "runtime_ops", "pyproject.toml", "CMakeLists.txt")


def code_commit() -> str:
    """Return the commit that changed the code last.

    Raises:
        SystemExit: If the code differs from it.
    """
    if _git("status", "--porcelain", "--", *_CODE):
        raise SystemExit("error: the code differs from its commit. Hint: commit it first, so that figures can name it")
    return _git("log", "-1", "--format=%h", "--abbrev=12", "--", *_CODE)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()
