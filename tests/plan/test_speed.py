"""Speeds out of a benchmark: what it measured is what a plan says of the same program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prgec.cli.main import main
from prgec.compiler.plan.source import read_shape
from prgec.compiler.plan.speed import reported_speed, speed_of_bench
from prgec.compiler.plan.workload import Workload
from prgec.errors import UsageError

SHAPE = read_shape("TinyLlama-1.1B")
_ROW = {"variant": "prgec", "backend": "xnnpack", "quantize": "8da4w", "q": 4, "B": 1, "T": 64, "layers": "all"}


def _bench(path: Path, *rows: dict[str, Any], layers: int = 22) -> Path:
    rows_of_file = [{**_ROW, "step_s": 3.0, **row} for row in rows]
    path.write_text(json.dumps({"rows": rows_of_file, "machine": {"num_layers": layers}}), encoding="utf-8")
    return path


def test_the_measured_program_takes_what_was_measured(tmp_path: Path) -> None:
    speed = speed_of_bench(_bench(tmp_path / "b.json", {}, {"variant": "paper", "step_s": 99.0}), SHAPE)
    work = Workload(quantize="8da4w", batch_size=1, seq_len=64)
    assert speed.step_s(SHAPE, work) == pytest.approx(3.0)
    assert speed.step_s(SHAPE, Workload(quantize="none")) is None
    reported = reported_speed("xnnpack").step_s(SHAPE, work)
    assert reported is not None and reported < 1.5


def test_fewer_layers_measured_are_less_work(tmp_path: Path) -> None:
    slow, quick = (speed_of_bench(_bench(tmp_path / "b.json", {}, layers=each), SHAPE) for each in (11, 22))
    work = Workload(quantize="8da4w", batch_size=1, seq_len=64)
    assert (slow.step_s(SHAPE, work) or 0) > 1.7 * (quick.step_s(SHAPE, work) or 0) > 0


@pytest.mark.parametrize("text", ["", "[]", '{"rows": [{}], "machine": {"num_layers": 2}}', '{"rows": 3}'])
def test_what_is_no_benchmark_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "b.json"
    path.write_text(text, encoding="utf-8")
    assert main(["plan", "TinyLlama-1.1B", "--memory", "4G", "--bench", str(path)]) == 2
    err = capsys.readouterr().err
    assert "cannot use the benchmark" in err and err.count("\n") == 1


def test_a_benchmark_without_a_training_program(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no row of a training program on XNNPACK"):
        speed_of_bench(_bench(tmp_path / "b.json", {"variant": "inference"}), SHAPE)


def test_schemes_nobody_measured_show_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _bench(tmp_path / "b.json", {})
    assert main(["plan", "TinyLlama-1.1B", "--memory", "16G", "--bench", str(path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["quantize"] for row in rows if row["step_s"] is None} == {"none", "8da8w"}
