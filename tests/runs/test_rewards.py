"""Runs by rewards: they learn to write better answers, go on bit for bit, and refuse what teaches nothing."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.cli.main import main
from prgec.core.formats.journal import read_journal
from prgec.demo import data_file
from prgec.errors import NumericsError, PrgecError
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.run import run
from prgec.runtime.training.advantages import ADVANTAGES
from prgec.runtime.training.rollouts import answer_seed
from tests.runs.killing import assert_same_run, kill, metrics_of
from tests.shared import Shared
from tests.tiny_inputs import rewarded_options

STEPS = 9
REWARD = """
import random
def reward(prompt, answer, record):
    return answer.count("r") + random.random() * {noise}
"""
Make = Callable[..., RunOptions]


@pytest.fixture(scope="session")
def rewarded_pte(shared: Shared) -> Callable[[str], Path]:
    """Programs that write answers, by method."""
    return lambda method: shared.program(rewarded_options(method, Path("rewarded.pte")))


@pytest.fixture
def make(rewarded_pte: Callable[[str], Path], tmp_path: Path) -> Make:
    def options(method: str = "exact", noise: float = 0.0, **changes: Any) -> RunOptions:
        lines = data_file("train").read_text().splitlines()
        for name, part in (("train", lines[:12]), ("test", lines[12:16])):
            rows = [{"prompt": json.loads(line)["sentence"]} for line in part]
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "reward.py").write_text(REWARD.format(noise=noise))
        made = RunOptions(
            program=rewarded_pte(method),
            data=tmp_path / "train.jsonl",
            eval_data=tmp_path / "test.jsonl",
            reward=(str(tmp_path / "reward.py"),),
            steps=STEPS,
            lr=0.01,
            snapshot_every=4,
            out=tmp_path / "out",
        )
        return replace(made, **changes)

    return options


@pytest.mark.parametrize(
    "objective", [pytest.param(each, marks=pytest.mark.slow) if each == "grpo" else each for each in ADVANTAGES]
)
def test_it_learns_to_write_better_answers(make: Make, objective: str) -> None:
    result = run(make(objective=objective, steps=60))
    assert result.before is not None and result.after is not None
    assert result.before.reward is not None and result.after.reward is not None
    assert result.after.reward > result.before.reward + 0.5
    lines = [line for line in metrics_of(result.run) if "reward" in line]
    first, last = (np.mean([float(str(line["reward"])) for line in part]) for part in (lines[:10], lines[-10:]))
    assert last > first + 0.3
    assert {"nll", "spread", "length", "equal", "kl"} <= set(lines[-1])
    samples = json.loads((result.run / "run.json").read_text())["samples"]
    assert len(samples) == 4 and all(each["prompt"] and each["before"] != each["after"] for each in samples)
    assert lines[0]["kl"] == 0.0 < float(str(lines[-1]["kl"]))
    assert read_journal(result.run / "journal.bin").header.estimator == f"adamw+{objective}"


@pytest.mark.slow
def test_measured_losses_learn_from_rewards_too(make: Make) -> None:
    options = make("prge", steps=300, lr=0.003, eval_data=None)
    Path(options.reward[0]).write_text("def reward(prompt, answer, record):\n    return -len(answer) / 10\n")
    result = run(options)
    answers = [json.loads(line) for line in (result.run / "answers.jsonl").read_text().splitlines()]
    rewards = [np.mean([each["reward"] for each in line["answers"]]) for line in answers]
    assert np.mean(rewards[-50:]) > np.mean(rewards[:50]) + 0.15


@pytest.mark.slow
def test_copies_with_better_answers_show_the_way(make: Make) -> None:
    options = make("prge", steps=150, lr=0.01, objective="es", eval_data=None, eps=0.1)
    Path(options.reward[0]).write_text("def reward(prompt, answer, record):\n    return -len(answer) / 10\n")
    result = run(options)
    answers = [json.loads(line) for line in (result.run / "answers.jsonl").read_text().splitlines()]
    rewards = [np.mean([each["reward"] for each in line["answers"]]) for line in answers]
    assert np.mean(rewards[-100:]) > np.mean(rewards[:100]) + 0.15
    # The journal has the copies' mean rewards, by which the run is replayed.
    records = read_journal(result.run / "journal.bin").steps
    q = len(records[0].g)
    np.testing.assert_allclose(records[3].losses.reshape(-1), -np.array(rewards[6 * q : 8 * q]), rtol=1e-6)


@pytest.mark.parametrize(("method", "objective"), [("exact", "grpo"), ("prge", "grpo"), ("prge", "es")])
@pytest.mark.parametrize("step", [1, 6, STEPS])
def test_a_killed_run_ends_as_if_never_killed(
    make: Make, tmp_path: Path, method: str, objective: str, step: int
) -> None:
    whole = run(make(method, objective=objective, out=tmp_path / "whole")).run
    folder = kill(make(method, objective=objective), step)
    run(make(method, objective=objective, resume=True))
    assert_same_run(folder, whole)
    assert (folder / "answers.jsonl").read_bytes() == (whole / "answers.jsonl").read_bytes()


@pytest.mark.parametrize("objective", ["grpo", "rloo"])
@pytest.mark.parametrize("step", [1, 2, 5, 6, STEPS])
def test_several_steps_on_the_same_answers_survive_kills(make: Make, tmp_path: Path, objective: str, step: int) -> None:
    """The ratios of probabilities need what the program was when it wrote them, which is gone by then."""
    changes: dict[str, Any] = {"objective": objective, "num_iterations": 3, "snapshot_every": 1}
    whole = run(make(**changes, out=tmp_path / "whole")).run
    folder = kill(make(**changes), step)
    run(make(**changes, resume=True))
    assert_same_run(folder, whole)
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert [line["step"] for line in answers] == [1, 4, 7]
    assert (folder / "answers.jsonl").read_bytes() == (whole / "answers.jsonl").read_bytes()
    assert all(math.isfinite(each["loss"]) for line in answers for each in line["answers"])


def test_answers_that_moved_far_count_no_more(make: Make, tmp_path: Path) -> None:
    shares = {}
    for clip in (1e-6, 1e6):
        done = run(make(num_iterations=3, clip=clip, eval_data=None, out=tmp_path / str(clip)))
        shares[clip] = [float(str(line.get("clipped", 0))) for line in metrics_of(done.run)]
    assert not any(shares[1e6])
    assert [bool(each) for each in shares[1e-6]] == [False, True, True] * (STEPS // 3)


def test_answers_that_are_gone_are_reported(make: Make) -> None:
    changes: dict[str, Any] = {"num_iterations": 3, "snapshot_every": 1}
    folder = kill(make(**changes), 5)
    lines = (folder / "answers.jsonl").read_text().splitlines()
    (folder / "answers.jsonl").write_text("".join(line + "\n" for line in lines if '"step": 4' not in line))
    with pytest.raises(PrgecError, match="the answers of step 4 are not in the run folder"):
        run(make(**changes, resume=True))


def test_rewards_are_kept_where_they_would_not_be_the_same_again(make: Make) -> None:
    folder = kill(make(noise=0.5, snapshot_every=0), 6)
    kept = (folder / "answers.jsonl").read_text().splitlines()
    # A line that was being written does no harm.
    with (folder / "answers.jsonl").open("a") as file:
        file.write('{"step": 7, "call": 0, "ans')
    run(make(noise=0.5, snapshot_every=0, resume=True))
    lines = (folder / "answers.jsonl").read_text().splitlines()
    assert lines[:6] == kept and len(lines) == STEPS


def test_rewards_are_measured_without_learning(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    options = make()
    result = run(options)
    assert result.before is not None and result.after is not None
    command = ["eval", str(options.program), "--data", str(options.eval_data), "--reward", options.reward[0], "--json"]
    for adapter, expected in (([], result.before), (["--adapter", str(result.run)], result.after)):
        assert main([*command, *adapter]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["reward"] == expected.reward and found["num_examples"] == 4
        assert found["task"] == options.reward[0] and "loss" not in found
    assert main([*command[:-1]]) == 0
    assert f"reward    {result.before.reward:.4f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-new-tokens", "3"], "--max-new-tokens is of answers that are judged. Hint: add --reward"),
        (["--reward", "contains", "--task", "sst2"], "--reward reads prompts of any format"),
        (["--reward", "max_words:2", "--max-new-tokens", "9"], "--max-new-tokens is 9; the program holds 5"),
    ],
)
def test_what_cannot_be_measured_is_reported(
    make: Make, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    options = make()
    assert main(["eval", str(options.program), "--data", str(options.eval_data), *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_new_run_has_answers_of_its_own(make: Make) -> None:
    folder = run(make(steps=3)).run
    run(make(steps=2, seed=1, force=True))
    assert len((folder / "answers.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "body", ["raise ValueError('no')", pytest.param("import time; time.sleep(30)", marks=pytest.mark.slow)]
)
def test_a_reward_that_fails_stops_the_run_or_is_skipped(make: Make, tmp_path: Path, body: str) -> None:
    options = make(steps=5, eval_data=None, reward_timeout=2.0)
    (tmp_path / "reward.py").write_text(
        f"calls = 0\ndef reward(prompt, answer, record):\n    global calls\n    calls += 1\n"
        f"    if calls % 5 == 0: {body}\n    return len(answer)\n"
    )
    with pytest.raises(NumericsError, match="reward"):
        run(options)
    assert (tmp_path / "out" / "adapter.safetensors").exists()
    result = run(replace(options, not_finite="skip", out=tmp_path / "skipped"))
    assert result.steps == 5
    lines = [json.loads(line) for line in (tmp_path / "skipped" / "answers.jsonl").read_text().splitlines()]
    assert any(each["reward"] is None for line in lines for each in line["answers"])


def test_distance_to_the_start_can_cost(make: Make, tmp_path: Path) -> None:
    kl = {}
    for beta in (0.0, 5.0):
        folder = run(make(steps=40, beta=beta, eval_data=None, out=tmp_path / f"out-{beta}")).run
        kl[beta] = np.mean([float(str(line["kl"])) for line in metrics_of(folder) if "kl" in line][-10:])
    assert kl[5.0] < 0.5 * kl[0.0]


def test_chats_and_right_answers_reach_the_reward(make: Make, tmp_path: Path) -> None:
    rows = [{"question": f"what is {n}", "reply": "good"} for n in range(4)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "check.py").write_text(
        "def reward(prompt, answer, record):\n"
        "    assert prompt.startswith('what is') and record['completion'] == 'good'\n    return len(answer)\n"
    )
    columns = ("prompt=question", "completion=reply")
    own = {"data": tmp_path / "own.jsonl", "eval_data": None, "columns": columns}
    assert run(make(**own, reward=(str(tmp_path / "check.py"), "contains"), steps=2)).steps == 2


def test_it_refuses_what_it_cannot_learn_from(make: Make, tiny_pte: Path, weighing_pte: Path, tmp_path: Path) -> None:
    for changes, message in (
        ({"program": tiny_pte}, "--reward needs a program that writes answers.*--context"),
        ({"num_generations": 3}, "3 answers to a prompt do not fill the 8 rows"),
        ({"num_iterations": 0}, "--num-iterations is 0; expected 1 or more"),
        ({"clip": 0.0}, r"--clip is 0\.0; expected a number above 0"),
        ({"num_generations": 1}, "1 answers to a prompt do not fill"),
        ({"max_new_tokens": 9}, "--max-new-tokens is 9; the program holds 5"),
        ({"reward": (), "objective": "grpo"}, "--objective grpo needs a reward"),
        ({"objective": "dpo"}, "--objective dpo reads answers, and --reward judges new ones"),
        ({"temperature": -1.0}, "--temperature is -1.0"),
        ({"reward_timeout": 0.0}, "--reward-timeout is 0.0"),
        ({"low_volume": True}, "--reward takes all of --data"),
        ({"reward": ("kindness",)}, "is not a reward"),
    ):
        with pytest.raises(PrgecError, match=message):
            run(make(**changes))  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_run_goes_on_with_its_own_rewards(make: Make) -> None:
    kill(make(), 6)
    for changes in ({"reward": ("max_words:2",)}, {"temperature": 0.5}, {"max_new_tokens": 3}):
        with pytest.raises(PrgecError, match="what belongs to --reward differs from the run to resume"):
            run(make(resume=True, **changes))


def test_a_run_is_repeated_from_its_options(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(make(steps=2)).run
    monkeypatch.chdir(tmp_path.parent)
    assert main(["run", "-c", str(first / "run.toml"), "--out", str(tmp_path / "again")]) == 0
    assert (first / "journal.bin").read_bytes() == (tmp_path / "again" / "journal.bin").read_bytes()


def test_a_talk_teaches_by_its_feedback(
    rewarded_pte: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def talk(said: str, *options: str) -> list[str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(said))
        assert main(["chat", str(program), "--max-tokens", "4", *options]) == 0
        return capsys.readouterr().out.splitlines()

    program, path = rewarded_pte("exact"), tmp_path / "thumbs.jsonl"
    lines = ["I found the sauce", "The breakfast was", "Every part of the plot felt"]
    before = talk("+\n" + "".join(f"{line}\n= terrible\n" for line in lines) + "+\n", "--feedback", str(path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["label"] for row in rows] == [False, True] * 3 + [True]
    assert [row["prompt"] for row in rows] == [line for line in lines for _ in range(2)] + [lines[-1]]
    assert [row["completion"] for row in rows[::2]][:3] == before and rows[1]["completion"] == " terrible"
    # Without the option such lines go to the model.
    assert len(talk("+\n")) == 1
    options = RunOptions(program=program, data=path, objective="kto", steps=40, lr=0.01, out=tmp_path / "out")
    run(options)
    after = talk("".join(f"{line}\n" for line in lines), "--adapter", str(tmp_path / "out"))
    assert all(answer.strip().startswith("terrible") for answer in after) and after != before


def test_every_answer_has_draws_of_its_own() -> None:
    seeds = {answer_seed(*each) for each in np.ndindex(3, 4, 3, 5)}
    assert len(seeds) == 3 * 4 * 3 * 5 and max(seeds) < 2**63
