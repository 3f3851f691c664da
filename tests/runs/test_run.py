"""A run learns, leaves a complete folder, can be stopped and repeated, and leaves nothing when refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prgec.cli.main import main
from prgec.core.data.dataset import Dataset
from prgec.errors import DataError, NumericsError, PrgecError, ProgramError, UsageError
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.result import Listener
from prgec.runtime.runs.run import run
from prgec.runtime.training.step import StepResult

FILES = {"adapter.safetensors", "journal.bin", "metrics.jsonl", "plot.png", "run.json", "run.toml"}


@pytest.fixture
def options(tiny_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path: Path) -> RunOptions:
    return RunOptions(
        program=tiny_pte,
        data=train_jsonl,
        eval_data=dev_jsonl,
        steps=30,
        lr=0.05,
        schedule="constant",
        out=tmp_path / "out",
    )


def _metrics(options: RunOptions) -> list[dict[str, Any]]:
    assert options.out is not None
    return [json.loads(line) for line in (options.out / "metrics.jsonl").read_text().splitlines()]


def test_learns(options: RunOptions) -> None:
    result = run(replace(options, steps=1000, lr=0.1, schedule="linear", eval_every=500))
    assert result.before and result.after
    assert result.after.loss < 0.4 * result.before.loss
    assert [m["step"] for m in _metrics(options) if "eval_loss" in m] == [0, 500, 1000]


def test_folder_is_complete(options: RunOptions) -> None:
    result = run(options)
    assert options.out is not None
    assert {path.name for path in options.out.iterdir()} == FILES
    assert (options.out / "plot.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((options.out / "run.json").read_text())
    assert summary["status"] == "complete"
    assert summary["state_sha256"] == result.state_sha256
    assert summary["options"]["lr"] == 0.05
    steps = [m for m in _metrics(options) if "loss" in m]
    assert [m["step"] for m in steps] == list(range(1, 31))
    assert set(steps[0]) == {"step", "loss", "lr", "g", "seconds"}
    assert len(steps[0]["g"]) == 2
    assert result.loss == pytest.approx(sum(m["loss"] for m in steps) / 30)


def test_same_options_same_numbers(options: RunOptions, tmp_path: Path) -> None:
    first, again = run(options), run(replace(options, out=tmp_path / "again"))
    other = run(replace(options, seed=1, out=tmp_path / "other"))
    assert first.state_sha256 == again.state_sha256 != other.state_sha256
    assert first.loss == again.loss


def test_evaluating_in_between_does_not_change_training(options: RunOptions, tmp_path: Path) -> None:
    often = run(replace(options, eval_every=7, out=tmp_path / "often"))
    never = run(replace(options, eval_data=None, out=tmp_path / "never"))
    assert often.state_sha256 == never.state_sha256
    assert never.before is never.after is None


def test_evaluations_see_every_step_done(options: RunOptions, tmp_path: Path) -> None:
    run(replace(options, eval_every=7))
    short = run(replace(options, steps=7, out=tmp_path / "short"))
    assert short.before and short.after
    losses = {m["step"]: m["eval_loss"] for m in _metrics(options) if "eval_loss" in m}
    assert losses[7] == pytest.approx(short.after.loss, rel=1e-9)
    one = run(replace(options, steps=1, out=tmp_path / "one"))
    assert one.before and one.after
    assert one.after.loss != one.before.loss


def test_starts_from_an_adapter(options: RunOptions, tmp_path: Path) -> None:
    first = run(options)
    assert options.out is not None and first.after is not None
    second = run(replace(options, adapter=options.out / "adapter.safetensors", out=tmp_path / "second"))
    assert second.before is not None
    assert second.before.loss == pytest.approx(first.after.loss, rel=1e-6)


def test_schedule_reaches_the_program(options: RunOptions) -> None:
    run(replace(options, schedule="linear", steps=10))
    rates = [m["lr"] for m in _metrics(options) if "lr" in m]
    assert rates == pytest.approx([0.05 * (1 - i / 10) for i in range(10)])


class _StopAfter(Listener):
    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.done = 0

    def on_step(self, result: StepResult) -> None:
        self.done = result.step

    def __call__(self) -> bool:
        return self.done >= self.steps


def test_interrupted_run_keeps_what_it_did(options: RunOptions, tmp_path: Path) -> None:
    stop = _StopAfter(12)
    result = run(options, stop, stop)
    whole = run(replace(options, steps=12, out=tmp_path / "whole"))
    assert result.interrupted
    assert result.steps == 12
    assert result.after is None
    assert result.state_sha256 == whole.state_sha256
    assert options.out is not None
    assert {path.name for path in options.out.iterdir()} == FILES
    assert json.loads((options.out / "run.json").read_text())["status"] == "interrupted"


def test_interrupted_before_the_first_step_leaves_nothing(options: RunOptions) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(options, Listener(), lambda: True)
    assert options.out is not None and not options.out.exists()


def test_divergence_keeps_the_state_and_says_where(options: RunOptions) -> None:
    with pytest.raises(NumericsError, match="not finite.*out.*lower --lr") as caught:
        run(replace(options, lr=1e38, estimator="plain"))
    assert options.out is not None
    assert {path.name for path in options.out.iterdir()} == FILES
    summary = json.loads((options.out / "run.json").read_text())
    assert summary["status"].startswith("stopped: the loss of step")
    assert summary["steps"] >= 1
    assert caught.value.exit_code == 8


def test_an_earlier_run_stays_until_another_replaces_it(options: RunOptions) -> None:
    run(options)
    assert options.out is not None
    before = {path.name: path.read_bytes() for path in options.out.iterdir()}

    class Failing(Listener):
        def on_step(self, result: StepResult) -> None:
            raise OSError("disk on fire")

    with pytest.raises(UsageError, match=r"--out holds a finished run of \d+ steps.*name another --out"):
        run(options)
    assert {path.name: path.read_bytes() for path in options.out.iterdir()} == before
    with pytest.raises(OSError, match="disk on fire"):
        run(replace(options, force=True), Failing())
    after = {path.name: path.read_bytes() for path in options.out.iterdir()}
    # The failed run can still be resumed, and looked at.
    assert after.pop("journal.partial.bin") and after.pop("metrics.partial.jsonl").count(b"\n") == 2
    assert after == before


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"steps": 0}, UsageError, "--steps is 0"),
        ({"eps": 0.0}, UsageError, "--eps is 0.0"),
        ({"lr": float("nan")}, UsageError, "--lr is nan"),
        ({"lr": -1.0}, UsageError, "--lr is -1.0"),
        ({"seed": 2**63}, UsageError, "--seed is 9223372036854775808"),
        ({"eval_every": 5, "eval_data": None}, UsageError, "--eval-every needs --eval-data"),
        ({"data": None}, UsageError, "either --data or --rows"),
        ({"rows": Path("rows.bin")}, UsageError, "either --data or --rows"),
        ({"eval_rows": Path("rows.bin")}, UsageError, "either --eval-data or --eval-rows"),
        ({"data": None, "rows": Path("rows.bin")}, DataError, "no such file of rows"),
        ({"estimator": "adam"}, UsageError, "unknown estimator"),
        ({"schedule": "step"}, UsageError, "unknown schedule"),
        ({"task": "klingon"}, UsageError, "unknown task"),
        ({"data": Path("none.jsonl")}, DataError, "no such data file"),
        ({"program": Path("none.pte")}, ProgramError, "no such program"),
        ({"adapter": Path("none.safetensors")}, ProgramError, "no such adapter"),
    ],
)
def test_refusals_write_nothing(
    options: RunOptions, change: dict[str, Any], kind: type[PrgecError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        run(replace(options, **change))
    assert options.out is not None and not options.out.exists()


def test_foreign_folder_is_refused_unless_forced(options: RunOptions) -> None:
    assert options.out is not None
    options.out.mkdir()
    (options.out / "thesis.tex").write_text("precious")
    with pytest.raises(UsageError, match="holds thesis.tex, which is not from a run"):
        run(options)
    run(replace(options, force=True))
    assert (options.out / "thesis.tex").read_text() == "precious"
    assert {path.name for path in options.out.iterdir()} == FILES | {"thesis.tex"}


def test_a_run_folder_is_an_adapter(options: RunOptions, tmp_path: Path) -> None:
    first = run(options)
    assert options.out is not None
    on = replace(options, adapter=options.out, out=tmp_path / "on", steps=1)
    from_file = replace(on, adapter=options.out / "adapter.safetensors", out=tmp_path / "from-file")
    assert run(on).state_sha256 == run(from_file).state_sha256 != first.state_sha256


def test_file_as_folder_is_refused(options: RunOptions) -> None:
    assert options.out is not None
    options.out.write_text("a file")
    with pytest.raises(UsageError, match="--out is a file"):
        run(options)


def test_default_folder_is_the_first_free_one(
    options: RunOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = [run(replace(options, out=None, eval_data=None, steps=1)) for _ in range(2)]
    assert [str(result.run) for result in results] == ["runs/tiny-1", "runs/tiny-2"]


def test_rows_are_the_data_they_were_made_from(options: RunOptions, tmp_path: Path) -> None:
    rows = [tmp_path / "train.bin", tmp_path / "dev.bin"]
    for path, data in zip(rows, (options.data, options.eval_data), strict=True):
        assert main(["tokenize", str(options.program), str(data), "-o", str(path)]) == 0
    from_text = run(options)
    from_rows = run(replace(options, data=None, eval_data=None, rows=rows[0], eval_rows=rows[1], out=tmp_path / "rows"))
    assert from_rows.state_sha256 == from_text.state_sha256
    assert from_rows.before and from_text.before and from_rows.after and from_text.after
    assert from_rows.before.loss == from_text.before.loss
    assert from_rows.after.accuracy == from_text.after.accuracy


def test_low_volume_chooses_by_other_rows_than_it_reports(options: RunOptions) -> None:
    heard: list[str] = []

    class Ears(Listener):
        def on_data(self, dataset: Dataset) -> None:
            heard.append(dataset.describe())

    result = run(replace(options, low_volume=True, eval_every=10), Ears())
    assert heard[0].startswith("task sst2 (from the fields sentence, label), 64 items of ")
    # 64 rows: 21 to choose by, 43 to train on; the 37 of --eval-data are for the ends.
    assert options.out is not None
    summary = json.loads((options.out / "run.json").read_text())
    assert len(summary["samples"]) == 12
    assert result.before and result.before.num_examples == 37
    alone = run(replace(options, low_volume=True, eval_data=None, force=True))
    assert alone.before and alone.before.num_examples == 21


def test_data_of_two_tasks_are_refused(options: RunOptions, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "x", "completion": "y"}')
    with pytest.raises(DataError, match="--data is of task sst2, --eval-data of completion"):
        run(replace(options, eval_data=other))
