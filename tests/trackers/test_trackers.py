"""Trackers for real: what they keep is read back by their own readers and compared with the run's metrics.

Those that are not installed are skipped; what logs to a server logs to files here.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prgec.cli.main import main
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.run import run
from prgec.runtime.trackers.sink import TrackedRun
from prgec.runtime.trackers.table import make_sinks

STEPS = 12
Points = list[tuple[int, float]]


@pytest.fixture
def train(
    tiny_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Run `prgec run --log-to` in an empty folder, and return the run folder."""
    monkeypatch.chdir(tmp_path)

    def train(*names: str, extra: tuple[object, ...] = ()) -> Path:
        flags = [part for name in names for part in ("--log-to", name)]
        data = ["--data", train_jsonl, "--eval-data", dev_jsonl, "--eval-every", 5, "--steps", STEPS]
        assert main([*map(str, ("run", tiny_pte, *data, "--out", tmp_path / "out", *extra)), *flags]) == 0
        return tmp_path / "out"

    return train


def _curves(folder: Path) -> dict[str, Points]:
    """Content of the run folder, by the names trackers know."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps, scores = [each for each in lines if "loss" in each], [each for each in lines if "eval_loss" in each]
    return {
        "train/loss": [(each["step"], each["loss"]) for each in steps],
        "train/lr": [(each["step"], each["lr"]) for each in steps],
        "train/g": [(each["step"], (sum(g * g for g in each["g"]) / len(each["g"])) ** 0.5) for each in steps],
        "eval/loss": [(each["step"], each["eval_loss"]) for each in scores],
        "eval/accuracy": [(each["step"], each["eval_accuracy"]) for each in scores],
    }


def _assert_same(found: dict[str, Points], folder: Path) -> None:
    wanted = _curves(folder)
    assert len(wanted["train/loss"]) == STEPS and len(wanted["eval/loss"]) == 4
    for name, points in wanted.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in points], rel=1e-6), name


def _tensorboard(folder: Path) -> tuple[dict[str, Points], Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    curves = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    return curves, events


def test_tensorboard_reads_the_run(train: Callable[..., Path]) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    folder = train("tensorboard")
    curves, events = _tensorboard(folder)
    _assert_same(curves, folder)
    summary = json.loads((folder / "run.json").read_text())
    assert curves["result/eval_loss"] == [(STEPS, pytest.approx(summary["eval_loss"]))]
    (text,) = events.Tensors("options/text_summary")
    assert b"| lr | 0.003 |" in text.tensor_proto.string_val[0]
    assert summary["options"]["log_to"] == ["tensorboard"]
    assert 'log-to = ["tensorboard"]' in (folder / "run.toml").read_text()


def test_a_run_that_goes_on_is_one_curve(
    tiny_pte: Path, train_jsonl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    options = RunOptions(program=tiny_pte, data=train_jsonl, steps=STEPS, out=tmp_path / "out", log_to=("tensorboard",))
    calls = iter(range(100))
    assert run(options, should_stop=lambda: next(calls) >= 5).interrupted
    assert not run(RunOptions(**{**vars(options), "resume": True})).interrupted
    loss = _tensorboard(tmp_path / "out")[0]["train/loss"]
    assert [step for step, _ in loss] == list(range(1, STEPS + 1))


def test_a_run_goes_on_without_its_tracker(train: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    folder = Path("out")
    folder.mkdir()
    (folder / "tensorboard").write_text("where a folder should be")
    train("tensorboard", extra=("--force",))
    assert capsys.readouterr().err.count("tensorboard failed: ") == 1
    assert json.loads((folder / "run.json").read_text())["status"] == "complete"


@pytest.mark.parametrize("store", ["file", "sqlite"])
def test_mlflow_reads_the_run(store: str, train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    if store == "sqlite":
        pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no database")
    where = {"file": (Path.cwd() / "mlruns").as_uri(), "sqlite": f"sqlite:///{Path.cwd()}/mlflow.db"}[store]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", where)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = train("mlflow")
    client = mlflow.MlflowClient(tracking_uri=where)
    (found,) = client.search_runs([client.get_experiment_by_name("prgec").experiment_id])
    assert (found.info.run_name, found.info.status, found.data.params["steps"]) == ("out", "FINISHED", str(STEPS))
    names = _curves(folder)
    history = {name: client.get_metric_history(found.info.run_id, name) for name in names}
    _assert_same({name: [(m.step, m.value) for m in points] for name, points in history.items()}, folder)


def _leveldb_records(data: bytes) -> list[bytes]:
    """Records of a log in LevelDB's format: blocks of 32 KiB, pieces with checksum, length and kind."""
    records, at, parts = [], 7, b""
    while at < len(data):
        if (left := (1 << 15) - at % (1 << 15)) < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            records.append(parts)
            parts = b""
    return records


def test_wandb_offline_keeps_the_run(train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = train("wandb")
    (path,) = Path.cwd().glob("wandb/offline-run-*/*.wandb")
    curves: dict[str, Points] = {}
    for data in _leveldb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for name, value in row.items():
            curves.setdefault(name, []).append((row.get("step"), value))
    _assert_same(curves, folder)


def test_trackio_keeps_the_run(train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="trackio is not installed")
    folder = train("trackio")
    (path,) = (tmp_path / "trackio").glob("prgec*.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("select step, metrics from metrics order by id").fetchall()
    curves: dict[str, Points] = {}
    for step, text in rows:
        for name, value in json.loads(text).items():
            curves.setdefault(name, []).append((step, value))
    _assert_same(curves, folder)


def test_several_trackers_receive_one_run(train: Callable[..., Path]) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    folder = train("tensorboard", "tensorboard")
    _assert_same(_tensorboard(folder)[0], folder)


def test_no_tracker_is_imported_before_it_is_used() -> None:
    import sys

    before = set(sys.modules)
    assert TrackedRun(Path("a/b"), {}).name == "b"
    assert make_sinks(["wandb", "mlflow", "trackio"]).keys() == {"wandb", "mlflow", "trackio"}
    assert not {"wandb", "mlflow", "trackio"} & (set(sys.modules) - before)
