"""Applications find the installed driver as its README says, train with it, and answer with what it has trained."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import prgec.device
from prgec.compiler.options import CompileOptions
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.data.batches import training_batch
from prgec.core.data.prompts import Prompt
from prgec.core.formats.adapter import save_adapter
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.runs.rewards import PromptRows
from prgec.runtime.training.advantages import ADVANTAGES
from prgec.runtime.training.reward_trainer import RewardTrainer
from prgec.runtime.training.rollouts import Rollouts, WrittenAnswer
from prgec.runtime.training.sampling import Sampling
from prgec.version import __version__
from tests.device.conftest import generator, run_cmake, write_rows
from tests.shared import Shared

APPLICATION = Path(__file__).parent / "application"
EXAMPLE = Path(prgec.device.__file__).parent / "csrc" / "example"
PROMPT = "5 3 9 12 7\n"
STEPS = (3, 6)
REWARDED_STEPS = 3

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
def application(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(APPLICATION, installed, tmp_path_factory.mktemp("application"))


@pytest.fixture(scope="module")
def train_and_talk(application: Path) -> Path:
    return application / "train_and_talk"


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


class _Rewarded:
    """The rewards of train_by_rewards.cpp, and what it prints."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, step: int, call: int, answers: Sequence[WrittenAnswer]) -> np.ndarray:
        self.said += [" ".join(map(str, each.ids)) for each in answers]
        return np.array([sum(float(token % 7) for token in each.ids) / len(each.ids) for each in answers])


def _by_python(path: Path, advantage: str, adapter: Path) -> list[str]:
    program, scorer = open_pte(path), _Rewarded()
    rollouts = Rollouts(
        program=program, prompts=(), scorer=scorer, group=4, max_tokens=6, sampling=Sampling(1.0, 50, seed=11)
    )
    for step in range(REWARDED_STEPS):
        texts = (5, 3, 9 + step), (12, 7, 8, 20 + step, 4)
        prompts = [Prompt(ids=ids, shown="", record={}, where="") for ids in texts]
        trainer = RewardTrainer(program, replace(rollouts, prompts=prompts), ADVANTAGES[advantage])
        trainer.step_number = step
        rows = PromptRows(prompts, 4)
        first, last = (training_batch(rows, np.arange(4) + start, program.manifest) for start in (0, 4))
        trainer.gather(first)
        trainer.step(last, 0.05)
    save_adapter(adapter, program)
    return scorer.said


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_rewards_train_as_in_python(
    advantage: str,
    rows: int,
    application: Path,
    checkpoint: Path,
    shared: Shared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tokenizer, "end_ids", frozenset(range(0, 320, 5)))
    options = CompileOptions(
        model=str(checkpoint),
        output=Path("model.pte"),
        method="exact",
        batch_size=4,
        seq_len=16,
        num_labels=6,
        rank=4,
        label_weights=True,
        accumulate=True,
        generate=True,
        context=24,
        rollouts=rows,
    )
    path, numbers = shared.program(options), {"grpo": 0, "dr-grpo": 1, "rloo": 2}
    arguments = [path, numbers[advantage], REWARDED_STEPS, tmp_path / "cpp.safetensors"]
    done = subprocess.run(
        [application / "train_by_rewards", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = [line.strip() for line in done.stdout.splitlines() if not line.startswith("reward")]
    assert len({len(each.split()) for each in answers}) > 1, "answers that end together show little"
    assert answers == _by_python(path, advantage, tmp_path / "python.safetensors")
    adapters = [tmp_path / f"{each}.safetensors" for each in ("cpp", "python")]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()
