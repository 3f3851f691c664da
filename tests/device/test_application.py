"""Applications find the installed driver as its README says, train with it, and answer with what it has trained."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import prgec.device
from prgec.version import __version__
from tests.device.conftest import generator, run_cmake, write_rows

APPLICATION = Path(__file__).parent / "application"
EXAMPLE = Path(prgec.device.__file__).parent / "csrc" / "example"
PROMPT = "5 3 9 12 7\n"
STEPS = (3, 6)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(executable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    run_cmake("--install", executable.parent, "--prefix", folder)
    return folder


def _build(source: Path, installed: Path, folder: Path) -> Path:
    flags = (f"-DCMAKE_PREFIX_PATH={installed}", "-DCMAKE_BUILD_TYPE=Release", *generator())
    said = run_cmake("-S", source, "-B", folder, *flags) + run_cmake("--build", folder)
    assert "warning" not in said.lower(), said
    return folder


@pytest.fixture(scope="module")
def train_and_talk(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(APPLICATION, installed, tmp_path_factory.mktemp("application")) / "train_and_talk"


def test_what_is_installed_needs_nothing_of_the_tree(installed: Path) -> None:
    package = installed / "lib" / "cmake" / "prge"
    texts = "".join(path.read_text(encoding="utf-8") for path in package.iterdir())
    assert str(EXAMPLE.parents[3]) not in texts and f'PACKAGE_VERSION "{__version__}"' in texts
    assert {path.name for path in (installed / "include" / "prge").iterdir()} >= {"trainer.h", "generator.h", "rows.h"}
    assert (installed / "bin" / "prge_train").stat().st_mode & 0o111


def test_the_example_learns_what_is_corrected(
    installed: Path, executable: Path, program: Callable[[str], Path], tmp_path: Path
) -> None:
    # The example that --emit-driver wrote beside the driver.
    source = executable.parents[2] / "example"
    learner = _build(source, installed, tmp_path / "build") / "learn_corrections"
    lines = f"{PROMPT}= 4 8\n{PROMPT}= nothing\n"
    done = subprocess.run([learner, program("talking-exact")], input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, corrected, again = (line.split() for line in done.stdout.splitlines())
    assert before[:2] != ["4", "8"] and corrected[:2] == ["4", "8"] and again == corrected
    assert "a correction after a prompt" in done.stderr
    refused = subprocess.run([learner, "none.pte"], input=lines, capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1 and "none.pte" in refused.stderr


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
