"""Faults of the machine, made for real: one line that says what is wrong and what to do, and nothing is lost."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TOO_LONG = "a" * 300


def _prgec(*arguments: object, limit: Callable[[], None] | None = None) -> tuple[int, str]:
    command = [sys.executable, "-m", "prgec", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    return done.returncode, done.stderr.splitlines()[-1]


def _files_of_at_most(count: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (count, count))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"sentence": "great film", "label": 1}\n{"sentence": "dull plot", "label": 0}\n' * 40)
    return path


@pytest.mark.parametrize("option", ["--data", "--out", "-o"])
def test_a_name_that_is_too_long(tiny_pte: Path, rows: Path, tmp_path: Path, option: str) -> None:
    """For a file that is read, a folder that is written, and a program."""
    name = tmp_path / TOO_LONG
    code, line = {
        "--data": lambda: _prgec("eval", tiny_pte, "--data", name),
        "--out": lambda: _prgec("run", tiny_pte, "--data", rows, "--steps", 1, "--out", name),
        "-o": lambda: _prgec("compile", "demo", "--method", "prge", "--data", rows, "-o", name),
    }[option]()
    assert code != 0 and line.startswith("error: ") and "ile name too long" in line and len(line) < 400
    assert "bug" not in line


def test_a_file_that_grows_too_large_ends_a_run_that_goes_on(tiny_pte: Path, rows: Path, tmp_path: Path) -> None:
    """Steps that were written stay, and --resume takes them up."""
    out = tmp_path / "run"
    command = ("run", tiny_pte, "--data", rows, "--steps", 200, "--out", out)
    code, line = _prgec(*command, limit=_files_of_at_most(8000))
    assert code == 1 and line.startswith("error: File too large") and "Hint: raise the limit" in line
    kept = (out / "metrics.partial.jsonl").read_text().count("\n")
    assert kept > 5
    code, _ = _prgec(*command, "--resume")
    assert code == 0 and (out / "adapter.safetensors").is_file()


def test_a_file_that_is_too_large_leaves_no_half_program(tmp_path: Path, rows: Path) -> None:
    """The output is not there, or whole."""
    output = tmp_path / "m.pte"
    compiled = ("compile", "demo", "--method", "prge", "--data", rows, "--no-cache", "-o", output)
    code, line = _prgec(*compiled, limit=_files_of_at_most(200_000))
    assert code != 0 and "File too large" in line and "bug" not in line
    assert not output.exists() and [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]
