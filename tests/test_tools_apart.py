"""Tools and tests do not import each other: what both need is in tests/checks, and a tool starts it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHECKS = ("architectures", "eps", "faults", "formats", "fuzz", "load", "parity", "plan")


def imported(source: str) -> Iterator[str]:
    """Top-level names of the modules a file imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)


@pytest.mark.parametrize(("folder", "other"), [("tools", "tests"), ("tests", "tools")])
def test_neither_imports_the_other(folder: str, other: str) -> None:
    paths = [path for path in (ROOT / folder).rglob("*.py") if other in imported(path.read_text(encoding="utf-8"))]
    assert paths == []


@pytest.mark.parametrize(
    "line", ["from tests.models import TinyLlama", "import tests.models", "from tests import models"]
)
def test_every_way_to_import_is_seen(line: str) -> None:
    assert list(imported(f"def f():\n    {line}\n")) == ["tests"]


@pytest.mark.parametrize("name", CHECKS)
def test_a_tool_starts_its_check_with_the_flags_it_was_given(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / f"{name}.py"), "--no-such-flag"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 2
    assert f"{name}.py: error: unrecognized arguments: --no-such-flag" in run.stderr
