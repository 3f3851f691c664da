"""Runs that are killed, and what must be equal to a run that was not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prgec.runtime.runs.log import RunLog
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.result import Listener
from prgec.runtime.runs.run import run
from prgec.runtime.training.step import StepResult


class Killed(BaseException):
    """Ends a run without giving it a chance to tidy up more than a signal would."""


class _KillAfter(Listener):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, result: StepResult) -> None:
        if result.step == self._step:
            raise Killed


def options_of(program: Path, data: Path, eval_data: Path, out: Path, steps: int) -> RunOptions:
    """Return options of a run that evaluates and keeps snapshots on its way."""
    return RunOptions(
        program=program, data=data, eval_data=eval_data, steps=steps, lr=0.05, eval_every=5, snapshot_every=4, out=out
    )


def kill(options: RunOptions, step: int) -> Path:
    """Run until after a step; return the run folder."""
    with pytest.raises(Killed):
        run(options, _KillAfter(step))
    assert options.out is not None
    return options.out


def kill_in_log(options: RunOptions, name: str, call: int) -> None:
    """Run until after the n-th call of a method of the run's log, or before the files get their names."""
    real, seen = getattr(RunLog, name), []

    def dying(self: RunLog, *arguments: object, **named: object) -> None:
        seen.append(name)
        if name == "commit":
            raise Killed
        real(self, *arguments, **named)
        if len(seen) == call:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunLog, name, dying)
        run(options)


def metrics_of(folder: Path) -> list[dict[str, object]]:
    """Return the lines of metrics without the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def assert_same_run(folder: Path, whole: Path) -> None:
    """Check that two run folders differ in nothing but the clock."""
    for name in ("adapter.safetensors", "journal.bin"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    assert metrics_of(folder) == metrics_of(whole)
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}
    first, second = (json.loads((path / "run.json").read_text()) for path in (folder, whole))
    for key in ("steps", "loss", "accuracy", "accuracy_before", "state_sha256", "status"):
        assert first[key] == second[key], key
