"""Runs that measure too much, or nothing: they go on, end with their best state, and resume bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.cli.main import main
from prgec.core.formats.journal import read_journal
from prgec.errors import NumericsError
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.result import Listener
from prgec.runtime.runs.run import run
from prgec.runtime.training.step import StepResult


@pytest.fixture
def options(tiny_pte: Path, train_jsonl: Path, tmp_path: Path) -> RunOptions:
    return RunOptions(program=tiny_pte, data=train_jsonl, steps=16, lr=0.05, snapshot_every=4, out=tmp_path / "out")


class _Killed(BaseException):
    pass


class _KillAfter(Listener):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, result: StepResult) -> None:
        if result.step == self._step:
            raise _Killed


def _metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.mark.parametrize(
    "changes",
    [
        {"max_g": 1.5, "estimator": "norm"},
        {"max_g": 0.5, "over_limit": "skip", "estimator": "plain"},
        {"lr": 1e38, "schedule": "constant", "not_finite": "skip"},
    ],
)
def test_a_limited_run_resumes_bit_for_bit(options: RunOptions, changes: dict[str, Any], tmp_path: Path) -> None:
    options = replace(options, **changes)
    whole = tmp_path / "whole"
    run(replace(options, out=whole))
    limited = {line.get("limited") for line in _metrics(whole)}
    assert limited == {None, "clipped" if options.over_limit == "clip" and options.max_g else "skipped"}
    with pytest.raises(_Killed):
        run(options, _KillAfter(10))
    run(replace(options, resume=True))
    assert options.out is not None
    for name in ("journal.bin", "adapter.safetensors"):
        assert (options.out / name).read_bytes() == (whole / name).read_bytes()
    assert _metrics(options.out) == _metrics(whole)
    for record in read_journal(whole / "journal.bin").steps:
        assert np.isfinite(record.g).all()
        assert not options.max_g or np.abs(record.g).max() <= np.float32(options.max_g)


def test_other_limits_are_refused_when_resuming(options: RunOptions, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(_Killed):
        run(options, _KillAfter(3))
    base = ["run", options.program, "--data", options.data, "--out", options.out, "--steps", 16, "--lr", 0.05]
    for flags, name in ((["--max-g", 1], "--max-g"), (["--over-limit", "skip"], "--over-limit or --not-finite")):
        assert main([*map(str, base), "--resume", *map(str, flags)]) == 2
        assert f"error: {name} differs from the run to resume" in capsys.readouterr().err


def test_a_run_that_diverges_keeps_its_best_state(options: RunOptions, tmp_path: Path) -> None:
    options = replace(options, steps=200, lr=20.0, schedule="constant", diverged=1.2, window=3)
    with pytest.raises(NumericsError, match="training diverged: the mean loss of 3 steps was"):
        run(options)
    assert options.out is not None
    summary = json.loads((options.out / "run.json").read_text())
    assert summary["status"].startswith("stopped: training diverged")
    assert 3 <= summary["best_step"] < summary["steps"] < 200
    losses = [line["loss"] for line in _metrics(options.out)]
    means = [sum(losses[i : i + 3]) / 3 for i in range(len(losses) - 2)]
    assert summary["best_step"] == 3 + means.index(min(means))
    assert means[-1] > 1.2 * means[0] and max(means[:-1]) <= 1.2 * means[0]
    # Rebuilt another way.
    arguments = ["--program", options.program, "--step", summary["best_step"], "-o", tmp_path / "a"]
    assert main(["replay", str(options.out / "journal.bin"), *map(str, arguments)]) == 0
    assert (tmp_path / "a").read_bytes() == (options.out / "adapter.safetensors").read_bytes()
