"""A study does each run once, chooses on dev, and reports what it measured."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from prgec.cli.main import main
from prgec.core.contract.calls import Batch
from prgec.errors import BackendError, DataError, UsageError
from prgec.lab.study.baseline import Baseline
from prgec.lab.study.budget import Budget
from prgec.lab.study.cost import time_table
from prgec.lab.study.eager import EagerProgram
from prgec.lab.study.isolated import train_alone
from prgec.lab.study.method import KINDS
from prgec.lab.study.report import (
    accuracy_table,
    comparison_table,
    first_at,
    options_table,
    price_table,
    report,
    speed_table,
)
from prgec.lab.study.results import Result, append_result, read_results
from prgec.lab.study.runner import RESULTS_NAME, run_study
from prgec.lab.study.spec import Run, Study, read_study
from prgec.lab.study.train import train
from tests.study.conftest import TEXT, result_of


class _Trained:
    """Has a score on dev for every learning rate, and records the requested runs."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def __call__(self, run: Run, study: Study) -> Result:
        self.runs.append(run)
        lr = run.options["lr"]
        dev = {0.1: 0.3, 0.2: 0.7, 0.01: 0.5}[lr]
        return result_of(run.key(study), method=run.method, seed=run.seed, dev=dev, test=1 - dev, lr=lr)


def test_dev_chooses_and_all_seeds_are_reported(path: Path, tmp_path: Path) -> None:
    train = _Trained()
    results = run_study(read_study(path), tmp_path, train=train)
    assert [(run.method, run.options["lr"], run.seed) for run in train.runs] == [
        ("searched", 0.1, 0),
        ("searched", 0.1, 1),
        ("searched", 0.2, 0),
        ("searched", 0.2, 1),
        ("searched", 0.2, 2),
        ("fixed", 0.01, 0),
        ("fixed", 0.01, 1),
        ("fixed", 0.01, 2),
    ]
    assert [(each.method, each.options["lr"], each.seed) for each in results if each.method == "searched"] == [
        ("searched", 0.2, seed) for seed in range(3)
    ]


def test_a_stopped_study_goes_on(path: Path, tmp_path: Path) -> None:
    train = _Trained()
    run_study(read_study(path), tmp_path, train=train, should_stop=lambda: len(train.runs) == 3)
    assert len(train.runs) == 3
    # A crash in the middle of a line loses that run alone.
    with (tmp_path / RESULTS_NAME).open("a") as file:
        file.write('{"key": "half')
    run_study(read_study(path), tmp_path, train=train)
    assert len(train.runs) == 8
    assert len({(run.method, run.options["lr"], run.seed) for run in train.runs}) == 8
    assert len(run_study(read_study(path), tmp_path, train=train)) == 6
    assert len(train.runs) == 8


def test_equal_runs_are_done_once_and_reported_under_every_name(path: Path, tmp_path: Path) -> None:
    other = path.with_name("twins.toml")
    other.write_text(TEXT + TEXT[TEXT.index("[methods.fixed]") :].replace("fixed", "twin"))
    train = _Trained()
    results = run_study(read_study(other), tmp_path, train=train, only=["fixed", "twin"])
    assert len(train.runs) == 3
    assert [each.method for each in results] == ["fixed"] * 3 + ["twin"] * 3


def test_only_some_methods(path: Path, tmp_path: Path) -> None:
    train = _Trained()
    run_study(read_study(path), tmp_path, train=train, only=["fixed"])
    assert {run.method for run in train.runs} == {"fixed"}


def test_damaged_results(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("{}\n")
    append_result(path, result_of())
    with pytest.raises(DataError, match="line 1 is not a result"):
        read_results(path)


def test_memory_of_older_results_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_result(path, result_of())
    path.write_text(path.read_text().replace('"memory_bytes"', '"peak_bytes"'))
    assert read_results(path)["k"].memory_bytes is None


def test_one_run_of_several_that_took_more_is_no_reason_to_leave() -> None:
    budget = Budget(forward_rows=48, seconds=0.0, clock="wall", memory_bytes=5_000_000, eval_every=8)
    assert budget.holds([4_000_000, 9_000_000, 4_500_000])
    assert not budget.holds([4_000_000, 9_000_000, 5_500_000])
    assert not budget.holds([4_000_000, None, 4_000_000]) and not budget.holds([])


def test_what_memory_is_not_enough_for_does_not_compete(path: Path, tmp_path: Path) -> None:
    """The better rate adds more than the budget; of the other method, nothing fits."""

    def train(run: Run, study: Study) -> Result:
        done = _Trained()(run, study)
        return replace(done, memory_bytes={0.1: 4_000_000, 0.2: 6_000_000, 0.01: 9_000_000}[run.options["lr"]])

    other = path.with_name("memory.toml")
    other.write_text(TEXT.replace("forward_rows = 48", "forward_rows = 48\nmemory_mb = 5"))
    study = read_study(other)
    results = run_study(study, tmp_path, train=train)
    assert [(each.method, each.options["lr"], each.seed) for each in results] == [
        ("searched", 0.1, seed) for seed in range(3)
    ]
    text = report(study, results, "a command", read_results(tmp_path / RESULTS_NAME))
    assert "| searched | lr 0.1 | 4.0 (4.0 to 4.0) | 2 | 1 of 1 |" in text
    assert "| searched | lr 0.2 | 6.0 (6.0 to 6.0) | 2 | 0 of 1 |" in text
    assert "| fixed | - | 9.0 (9.0 to 9.0) | 2 | 0 of 1 |" in text
    assert "48 rows of forward passes a run (a backward pass counts as two forward passes), whose steps add" in text


class _Slow(Baseline):
    """Takes so many milliseconds a step, and notes the rates it was given."""

    rates: ClassVar[list[float]] = []

    def __init__(self, model: str, *, seed: int, milliseconds: int) -> None:
        super().__init__(EagerProgram(model, space="lora-fa", seed=seed, batch_size=2), rows_per_step=4)
        self._seconds = milliseconds / 1000

    def _train(self, batch: Batch, lr: float) -> float:
        self.rates.append(lr)
        time.sleep(self._seconds)
        return 1.0


def test_equal_seconds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of twice the time leaves time for half the steps; rates fall to zero with time, not with rows."""
    monkeypatch.setitem(KINDS, "slow", f"{__name__}:_Slow")
    other = path.with_name("seconds.toml")
    other.write_text(TEXT.replace("forward_rows = 48\neval_every = 16", "seconds = 0.6\neval_every = 0.2"))
    study, steps = read_study(other), []
    for milliseconds in (20, 40):
        _Slow.rates.clear()
        options = {"kind": "slow", "lr": 1.0, "milliseconds": milliseconds}
        found = train(Run("fixed", study.tasks[0], options, 0), study)
        steps.append(found.steps)
        assert _Slow.rates[0] == 1.0 and _Slow.rates == sorted(_Slow.rates, reverse=True) and _Slow.rates[-1] < 0.2
        assert [point.wall_s for point in found.curve] == pytest.approx([0.0, 0.2, 0.4, 0.6], abs=0.1)
        assert found.curve[-1].wall_s >= 0.6
    assert 0.3 < steps[1] / steps[0] < 0.7
    halfway = [0.1, 0.4, 0.8, 0.8]
    curve = tuple(replace(each, accuracy=score) for each, score in zip(found.curve, halfway, strict=True))
    assert "| fixed | film | 10.0 | 10.0 | 40.0 | 80.0 |" in time_table(study, [replace(found, curve=curve)])


class _Busy(_Slow):
    """Works all the time it takes."""

    def _train(self, batch: Batch, lr: float) -> float:
        until = time.process_time() + self._seconds
        while time.process_time() < until:
            pass
        return 1.0


def test_seconds_of_a_processor(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that waits has time for more steps by this clock; one that works has not."""
    monkeypatch.setitem(KINDS, "busy", f"{__name__}:_Busy")
    other = path.with_name("processor.toml")
    budget = 'seconds = 0.3\nclock = "cpu"\neval_every = 0.1'
    other.write_text(TEXT.replace("forward_rows = 48\neval_every = 16", budget))
    study = read_study(other)
    found = train(Run("fixed", study.tasks[0], {"kind": "busy", "lr": 1.0, "milliseconds": 20}, 0), study)
    assert 8 <= found.steps <= 15 and found.curve[-1].cpu_s >= 0.3
    assert "0.3 s of a processor for training steps a run" in study.budget.text


@pytest.mark.parametrize("text", ['seconds = 1\nclock = "sun"', 'forward_rows = 48\nclock = "cpu"'])
def test_clocks_nobody_has(path: Path, text: str) -> None:
    other = path.with_name("clock.toml")
    other.write_text(TEXT.replace("forward_rows = 48\neval_every = 16", text))
    with pytest.raises(UsageError, match="clock is .*; expected one of wall, cpu, beside seconds"):
        read_study(other)


class _Hungry(Baseline):
    """Holds so many MB for a moment in every step."""

    def __init__(self, model: str, *, seed: int, megabytes: int) -> None:
        super().__init__(EagerProgram(model, space="lora-fa", seed=seed, batch_size=2), rows_per_step=4)
        self._megabytes = megabytes

    def _train(self, batch: Batch, lr: float) -> float:
        if not self._megabytes:
            os.kill(os.getpid(), signal.SIGKILL)
        return float(len(b"x" * self._megabytes * 2**20))


@pytest.fixture
def hungry(path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Run]:
    monkeypatch.setitem(KINDS, "hungry", f"{__name__}:_Hungry")
    task = read_study(path).tasks[0]
    return lambda megabytes: Run("hungry", task, {"kind": "hungry", "lr": 0.1, "megabytes": megabytes}, 0)


def test_each_run_has_its_own_memory(path: Path, hungry: Callable[[int], Run]) -> None:
    found = [train_alone(hungry(megabytes), read_study(path)).memory_bytes or 0 for megabytes in (300, 50, 150)]
    assert found == [pytest.approx(megabytes * 2**20, abs=20e6) for megabytes in (300, 50, 150)]


def test_a_run_that_dies_or_fails_is_reported(path: Path, hungry: Callable[[int], Run]) -> None:
    study = read_study(path)
    with pytest.raises(BackendError, match="hungry on film, seed 0, ended with code -9. Hint: was there enough memory"):
        train_alone(hungry(0), study)
    with pytest.raises(UsageError, match="unknown optimizer 'lion'"):
        train_alone(replace(hungry(1), options={"kind": "fo", "optimizer": "lion", "lr": 0.1}), study)


def test_tables(path: Path) -> None:
    study = read_study(path)
    results = [
        *(
            result_of(method="searched", seed=seed, dev=dev, test=test, lr=0.2)
            for seed, (dev, test) in enumerate([(0.5, 0.6), (0.6, 0.8), (0.9, 0.7)])
        ),
        *(
            result_of(method="fixed", seed=seed, test=test, lr=0.01, rows=96)
            for seed, test in enumerate([0.5, 0.8, 0.9])
        ),
    ]
    assert "| searched | 70.0 ± 8.2 (60.0 to 80.0) | 70.0 |" in accuracy_table(study, results)
    compared = comparison_table(study, results)
    assert "| searched against fixed | test, end | 1 of 3 (-3.3) | 1 won, 1 tied, 1 lost | -3.3 |" in compared
    assert "| dev, mean of the curve | 2 of 3 (+16.7) | 2 won, 1 tied, 0 lost | +16.7 |" in compared
    assert "| searched | 0.0k, 2.0 s, 1.0 s (2 of 3) |" in price_table(study, results)
    assert "| fixed | never (0 of 3) |" in price_table(study, results)
    # Two searched runs get there at the end of 48 rows, one never does; fixed never does in 96.
    assert "| searched / fixed | 0.50 (0.0k / 0.1k) | 0.50 |" in speed_table(study, results)
    assert "| searched | 0.2 | 6 | 1.0 | 2.0 | 7 | 0 |" in options_table(study, results)
    assert first_at(results[0].curve, 0.95) is None


@pytest.mark.slow
def test_command(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """End to end: two kinds of method learn, and a second call finds everything done."""
    for begun in (8, 0):
        assert main(["study", str(path), "--out", str(tmp_path / "out"), "--json"]) == 0
        said = capsys.readouterr()
        document = json.loads(said.out)
        assert sum(line.endswith(" trains") for line in said.err.splitlines()) == begun
    assert len(document["results"]) == 6
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert len(lines) == 8
    curves: list[Sequence[dict[str, Any]]] = [json.loads(line)["curve"] for line in lines]
    assert {tuple(point["forward_rows"] for point in curve) for curve in curves} == {
        (0, 16, 32, 48),
        (0, 12, 24, 36, 48),
    }
    assert all(curve[0]["loss"] != curve[-1]["loss"] for curve in curves)
    assert all(0 < json.loads(line)["memory_bytes"] < 1e9 for line in lines)
    assert "| searched |" in (tmp_path / "out" / "report.md").read_text()
    assert (tmp_path / "out" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["study", str(path), "--only", "nobody"]) == 2
