"""Slow tests run in turns, and a long test without the marker fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import time, pytest

def test_quick(): pass

@pytest.mark.slow
@pytest.mark.parametrize("n", range(5))
def test_slow(n): pass

def test_long(): time.sleep(1.1)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "tests" / "test_all.py").write_text(TESTS)
    return tmp_path


def _pytest(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plugins = [each for name in ("tests.rotation", "xdist", "no:cacheprovider") for each in ("-p", name)]
    command = [sys.executable, "-m", "pytest", "-v", *plugins, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def test_each_slow_test_is_in_one_slice(project: Path) -> None:
    slices = [_pytest(project, "-m", "slow", "--slice", f"{n}/3").stdout for n in range(3)]
    ran = [[n for n in range(5) if f"test_slow[{n}] PASSED" in text] for text in slices]
    assert ran == [[0, 3], [1, 4], [2]]


WORKERS = pytest.mark.parametrize("workers", [[], ["-n", "1", "--dist", "loadgroup"]], ids=["one process", "a worker"])


@WORKERS
def test_what_took_long_is_slow(project: Path, workers: list[str]) -> None:
    """Unless durations are measured anew, which needs every test that has no marker of its own."""
    durations = project / "tests" / "durations.txt"
    durations.write_text("5.0\ttests/test_all.py::test_quick\n")
    assert "2 passed" in _pytest(project, *workers, "-m", "not slow", "--save-durations", "x").stdout
    assert "1 passed" in _pytest(project, *workers, "-m", "not slow").stdout
    slow = _pytest(project, *workers, "-m", "slow").stdout
    assert "6 passed" in slow and "test_long" not in slow


@WORKERS
def test_a_long_test_needs_the_marker(project: Path, workers: list[str]) -> None:
    durations = project / "tests" / "durations.txt"
    durations.write_text("30.0\ttests/test_all.py::test_slow[1]\n7.0\ttests/test_all.py::test_quick\n")
    assert _pytest(project, *workers, "--save-durations", str(durations)).returncode == 0
    # Tests that became quick leave the file.
    (line,) = durations.read_text().splitlines()
    assert line.startswith("1.") and line.endswith("\ttests/test_all.py::test_long")
    durations.write_text(f"21.0{line[line.index(chr(9)) :]}\n")
    refused = _pytest(project, *workers)
    assert refused.returncode == 1 and "1 error" in refused.stdout
    assert "the test took 21 s (durations.txt): mark it with pytest.mark.slow" in refused.stdout
