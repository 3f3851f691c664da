"""The package of docs/example-plugin, installed as pip does it: prgec finds what it adds by entry points."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import PROGRAMS, Compile

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "example-plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A build leaves files beside what it builds.
    source, target = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("installed")
    shutil.copytree(EXAMPLE, source)
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, str(source)], check=True)
    return target


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a b", "completion": "c"}\n{"prompt": "b a", "completion": "d"}\n')
    return path


def _prgec(installed: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prgec", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_backend(installed: Path, checkpoint: Path, rows: Path, tmp_path: Path) -> None:
    program = tmp_path / "linears.pte"
    done = _prgec(installed, "compile", checkpoint, "--data", rows, "--backend", "linears", "-o", program, "--no-cache")
    assert done.returncode == 0, done.stderr
    shown = _prgec(installed, "inspect", program).stdout
    assert "on linears" in shown and "XnnpackBackend" in shown and "aten.linear" in shown
    done = _prgec(installed, "run", program, "--data", rows, "--steps", 2, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    # Without it there are the others.
    missing = _prgec(tmp_path, "compile", checkpoint, "--data", rows, "--backend", "linears", "-o", tmp_path / "x.pte")
    assert missing.returncode == 2 and "linears" in missing.stderr and "portable" in missing.stderr


def test_a_tracker(installed: Path, compile_once: Compile, rows: Path, tmp_path: Path) -> None:
    program, run = compile_once(**PROGRAMS["xnnpack-seeded"]), tmp_path / "run"
    done = _prgec(installed, "run", program, "--data", rows, "--steps", 3, "--out", run, "--log-to", "lines")
    assert done.returncode == 0, done.stderr
    lines = (run / "lines.txt").read_text().splitlines()
    assert lines[0] == "run" and lines[-1] == "3 steps"
    assert [line.split(":")[0] for line in lines[1:-1]] == ["step 1", "step 2", "step 3"]
    missing = _prgec(
        tmp_path, "run", program, "--data", rows, "--steps", 3, "--out", tmp_path / "x", "--log-to", "lines"
    )
    assert missing.returncode == 2 and "lines" in missing.stderr


def test_a_reward(installed: Path) -> None:
    code = (
        "from prgec.runtime.rewards.builtin import BUILTINS\nfrom prgec.runtime.rewards.source import parse_rewards\n"
        "(source,) = parse_rewards(['polite:danke'])\nrow = BUILTINS[source.name]\n"
        "print(row.score('Danke!', {}, source.argument), row.score('no', {}, source.argument))"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1.0", "0.0"]
