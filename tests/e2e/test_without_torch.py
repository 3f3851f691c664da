"""Programs run where PyTorch cannot be imported (docs/decisions/022-without-torch.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import PROGRAMS, Compile

# A name that is None among the modules is one that cannot be imported.
_ALONE = """
import sys
sys.modules["torch"] = None
from prgec.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a b", "completion": "c"}\n{"prompt": "b a", "completion": "d"}\n')
    return path


def _prgec(*arguments: object) -> str:
    command = [sys.executable, "-c", _ALONE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["xnnpack-seeded", "portable-dual"])
def test_a_run_and_its_adapter(name: str, compile_once: Compile, rows: Path, tmp_path: Path) -> None:
    path, out = compile_once(**PROGRAMS[name]), tmp_path / "run"
    _prgec("run", path, "--data", rows, "--steps", 2, "--seed", 0, "--out", out)
    adapter = out / "adapter.safetensors"
    assert "state_sha256" in json.loads(_prgec("eval", path, "--data", rows, "--adapter", adapter, "--json"))
    assert json.loads(_prgec("inspect", path, "--json"))["backend"] == name.partition("-")[0]


def test_what_needs_it_says_so(compile_once: Compile, rows: Path) -> None:
    """The fence holds: the eager engine is PyTorch."""
    path = compile_once(**PROGRAMS["portable-dual"])
    arguments = ["run", str(path), "--data", str(rows), "--engine", "torch"]
    done = subprocess.run([sys.executable, "-c", _ALONE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "torch" in done.stderr
