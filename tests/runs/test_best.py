"""Early stopping keeps the state that scored best, through restarts, and never costs more than it has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prgec.core.formats.adapter import load_adapter
from prgec.core.formats.run_folder import RunFolder
from prgec.errors import UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.runs.best import BestState
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.result import Listener
from prgec.runtime.runs.run import run
from prgec.runtime.training.evaluate import Evaluation
from prgec.runtime.training.step import StepResult


def _scored(accuracy: float | None, loss: float = 1.0) -> Evaluation:
    return Evaluation(loss=loss, accuracy=accuracy, num_examples=1, num_calls=1, seconds=0.0)


def _trained(program: PteProgram, value: float) -> PteProgram:
    state = program.read_state()
    program.write_state({name: array * 0 + value for name, array in state.items()})
    return program


def test_best_comes_back_and_patience_counts(tiny_pte: Path, tmp_path: Path) -> None:
    program, best = open_pte(tiny_pte), BestState(2, RunFolder(tmp_path))
    for step, accuracy in enumerate((0.5, 0.8, 0.8, 0.7)):
        assert not best.is_over
        best.hear(step, _scored(accuracy), _trained(program, float(step)))
    assert best.is_over
    assert best.step == 1, "of equal scores the earlier one"
    best.restore(program)
    assert all((array == 1.0).all() for array in program.read_state().values())
    assert [path.name for path in tmp_path.iterdir()] == ["best.safetensors"]


def test_loss_decides_without_a_metric(tiny_pte: Path, tmp_path: Path) -> None:
    program, best = open_pte(tiny_pte), BestState(1, RunFolder(tmp_path))
    best.hear(1, _scored(None, loss=2.0), program)
    best.hear(2, _scored(None, loss=1.0), program)
    assert not best.is_over
    best.hear(3, _scored(None, loss=1.5), program)
    assert best.is_over and best.step == 2


def test_lost_file_keeps_the_last_state(tiny_pte: Path, tmp_path: Path) -> None:
    program, best = open_pte(tiny_pte), BestState(1, RunFolder(tmp_path))
    best.hear(1, _scored(0.5), program)
    (tmp_path / "best.safetensors").unlink()
    _trained(program, 3.0)
    assert best.restore(program) is None
    assert best.step is None
    assert all((array == 3.0).all() for array in program.read_state().values())


@pytest.fixture
def options(tiny_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path: Path) -> RunOptions:
    # A rate that wrecks what was learned, so that an early state is the best one.
    return RunOptions(
        program=tiny_pte,
        data=train_jsonl,
        eval_data=dev_jsonl,
        steps=60,
        lr=8.0,
        schedule="constant",
        eval_every=5,
        patience=3,
        out=tmp_path / "out",
    )


def test_run_stops_early_and_keeps_the_best(options: RunOptions) -> None:
    result = run(options)
    assert options.out is not None
    assert result.steps < 60 and not result.interrupted
    lines = [json.loads(line) for line in (options.out / "metrics.jsonl").read_text().splitlines()]
    accuracies = {line["step"]: line["eval_accuracy"] for line in lines if "eval_loss" in line}
    assert result.best_step == max(accuracies, key=lambda step: (accuracies[step], -step))
    assert result.after is not None and result.after.accuracy == accuracies[result.best_step]
    assert json.loads((options.out / "run.json").read_text())["status"] == "complete"
    # The adapter is that of the best step: a run of as many steps ends there.
    program = open_pte(options.program)
    load_adapter(options.out / "adapter.safetensors", program)
    assert program.state_sha256() == result.state_sha256
    assert not (options.out / "best.safetensors").exists()


def test_best_survives_a_kill(options: RunOptions, tmp_path: Path) -> None:
    whole = run(options)

    class Killed(Listener):
        def on_step(self, result: StepResult) -> None:
            if result.step == 12:
                raise OSError("power cut")

    cut = replace(options, out=tmp_path / "cut")
    with pytest.raises(OSError, match="power cut"):
        run(cut, Killed())
    resumed = run(replace(cut, resume=True))
    assert (resumed.best_step, resumed.steps, resumed.state_sha256) == (
        whole.best_step,
        whole.steps,
        whole.state_sha256,
    )


def test_early_stop_needs_evaluations(options: RunOptions) -> None:
    with pytest.raises(UsageError, match="--early-stop needs --eval-every"):
        run(replace(options, eval_every=0))
