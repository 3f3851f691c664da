"""A private run learns, keeps its budget over a kill, and refuses what it cannot hide."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prgec.cli.main import main
from prgec.core.formats.adapter import masters_sha256
from prgec.core.formats.journal import read_journal
from prgec.errors import UsageError
from prgec.runtime.runs.open import open_with_adapter
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.resume import rebuild
from prgec.runtime.runs.run import run
from tests.runs.killing import kill, options_of

STEPS = 12


@pytest.fixture
def options(tiny_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path: Path) -> RunOptions:
    return replace(options_of(tiny_pte, train_jsonl, dev_jsonl, tmp_path / "out", STEPS), dp_epsilon=4.0)


def _folder(options: RunOptions) -> Path:
    assert options.out is not None
    return options.out


def test_learns_within_a_budget(options: RunOptions) -> None:
    result = run(replace(options, steps=1000, lr=0.1, schedule="linear", dp_epsilon=100.0, eval_every=500))
    assert result.before and result.after
    assert result.after.loss < 0.6 * result.before.loss


def test_noise_comes_from_the_budget(options: RunOptions) -> None:
    run(options)
    found = json.loads((_folder(options) / "run.json").read_text())["privacy"]
    assert (found["epsilon"], found["delta"]) == (4.0, 1e-5)
    # The run uses every row of its file as often as it begins to go through it.
    assert found["visits"] >= 1
    assert found["noise_multiplier"] > 1.0


def test_steps_carry_more_noise_than_gradient(options: RunOptions) -> None:
    plain = replace(options, estimator="plain", dp_epsilon=0.0, lr=0.0)
    run(replace(plain, out=_folder(options) / "plain"))
    run(replace(plain, dp_epsilon=0.1, dp_clip=1.0, out=_folder(options) / "private"))
    exact, hidden = (
        np.array([each.g for each in read_journal(_folder(options) / name / "journal.bin").steps])
        for name in ("plain", "private")
    )
    noise = json.loads((_folder(options) / "private" / "run.json").read_text())["privacy"]["noise_multiplier"]
    batch = json.loads((_folder(options) / "private" / "run.json").read_text())["manifest"]["batch_size"]
    assert hidden.std() == pytest.approx(noise / batch, rel=0.5)
    assert hidden.std() > 3 * exact.std()


def test_goes_on_after_a_kill_with_the_steps_that_it_took(options: RunOptions, tiny_pte: Path) -> None:
    taken = [each.g.tolist() for each in read_journal(kill(options, 7) / "journal.partial.bin").steps]
    result = run(replace(options, resume=True))
    journal = read_journal(_folder(options) / "journal.bin")
    assert [each.g.tolist() for each in journal.steps][: len(taken)] == taken
    program = open_with_adapter(tiny_pte, None)
    rebuild(program, journal, None)
    assert masters_sha256(program) == result.state_sha256


@pytest.mark.parametrize("change", [{"dp_epsilon": 8.0}, {"dp_epsilon": 0.0}, {"dp_delta": 1e-6}, {"dp_clip": 1.0}])
def test_does_not_go_on_with_another_budget(options: RunOptions, change: dict[str, float]) -> None:
    kill(options, 3)
    with pytest.raises(UsageError, match="--dp-"):
        run(replace(options, resume=True, **change))  # type: ignore[arg-type]


def test_one_refusal_leaves_nothing_for_the_next(options: RunOptions) -> None:
    kill(options, 3)
    said = []
    for _ in range(2):
        with pytest.raises(UsageError) as refusal:
            run(replace(options, resume=True, dp_epsilon=0.0))
        said.append(str(refusal.value))
    assert said[0] == said[1]


def test_says_what_is_hidden(options: RunOptions, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["run", str(options.program), "--data", str(options.data), "--steps", "3", "--dp-epsilon", "4"]
        + ["--out", str(_folder(options))]
    )
    assert code == 0
    assert "private: epsilon 4 at delta 1e-05" in capsys.readouterr().err


def test_warns_of_a_delta_that_lets_a_row_be_known(options: RunOptions, caplog: pytest.LogCaptureFixture) -> None:
    run(replace(options, dp_delta=0.1))
    assert any("lets one of" in message for message in caplog.messages)


def test_refuses_gradients(gradient_pte: Path, options: RunOptions) -> None:
    with pytest.raises(UsageError, match="--dp-epsilon needs a program that measures losses"):
        run(replace(options, program=gradient_pte))
    assert not _folder(options).exists() or not list(_folder(options).iterdir())


def test_refuses_feedback(options: RunOptions) -> None:
    with pytest.raises(UsageError, match="--dp-epsilon is for runs that learn right answers"):
        run(replace(options, objective="dpo"))
