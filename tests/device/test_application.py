"""An application links the driver as its README says, trains with it, and answers with what it has trained by then."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from prgec.device.emit import emit_driver
from tests.device.conftest import generator, run_cmake, write_rows

APPLICATION = Path(__file__).parent / "application"
PROMPT = "5 3 9 12 7\n"
STEPS = (3, 6)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def train_and_talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("application")
    emit_driver(folder / "driver")
    flags = (f"-DPRGE_EMITTED={folder / 'driver'}", "-DCMAKE_BUILD_TYPE=Release", *generator())
    run_cmake("-S", APPLICATION, "-B", folder / "build", *flags)
    run_cmake("--build", folder / "build")
    return folder / "build" / "train_and_talk"


@pytest.mark.parametrize("name", ["talking", "talking-exact"])
def test_answers_in_the_middle_of_a_run(
    name: str, train_and_talk: Path, executable: Path, program: Callable[[str], Path], tmp_path: Path
) -> None:
    path, folder = program(name), tmp_path / "run"
    rows = write_rows(tmp_path / "rows.bin", path, examples=20, candidates=1, seed=0)
    done = subprocess.run([train_and_talk, path, rows, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    # Another process answers with the adapter of that moment.
    for step, answer in zip(STEPS, answers, strict=True):
        flags = ("--adapter", folder / f"{step}.safetensors", "--max-tokens", "12", "--end", "4000000000")
        said = subprocess.run(
            [executable.with_name("prge_chat"), path, *map(str, flags)], input=PROMPT, capture_output=True, text=True
        )
        assert said.stdout.split() == answer.split()
    assert answers[0] != answers[1], "weights that change nothing show nothing"
    # A run without answers ends the same.
    alone = [executable, path, "--rows", rows, "--steps", "6", "--lr", "0.05", "--out", tmp_path / "alone"]
    assert subprocess.run(alone, capture_output=True, check=False).returncode == 0
    adapters = [each / "adapter.safetensors" for each in (folder, tmp_path / "alone")]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()
