"""A metrics file is read while it grows, half-written, damaged, or another file altogether."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from prgec.serve.ui.curves import charts
from prgec.serve.ui.follow import Metrics
from tests.ui.synthetic import write_run


def _line(step: int, **values: Any) -> str:
    return json.dumps({"step": step, "loss": 1.0 / step, "lr": 0.1, "seconds": 0.5 * step, **values}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def _append(folder: Path, text: str, name: str = "metrics.partial.jsonl") -> None:
    with (folder / name).open("a") as file:
        file.write(text)


def test_what_is_new_is_read_and_half_lines_wait(folder: Path) -> None:
    metrics = Metrics(folder)
    metrics.refresh()
    assert list(metrics.steps) == []
    _append(folder, _line(1) + _line(2)[:20])
    metrics.refresh()
    assert (list(metrics.steps), metrics.num_damaged) == ([1], 0)
    before = metrics.version
    _append(folder, _line(2)[20:] + json.dumps({"step": 2, "eval_loss": 0.5, "eval_accuracy": 0.75}) + "\n")
    metrics.refresh()
    assert (list(metrics.steps), list(metrics.losses), metrics.scores) == ([1, 2], [1.0, 0.5], [(2, 0.5, 0.75)])
    assert metrics.version != before


def test_a_run_that_ends_keeps_its_numbers(folder: Path) -> None:
    metrics = Metrics(folder)
    _append(folder, _line(1))
    metrics.refresh()
    (folder / "metrics.partial.jsonl").rename(folder / "metrics.jsonl")
    _append(folder, _line(2), "metrics.jsonl")
    metrics.refresh()
    assert list(metrics.steps) == [1, 2]


def test_a_run_that_begins_again_begins_again(folder: Path) -> None:
    metrics = Metrics(folder)
    _append(folder, _line(1) + _line(2), "metrics.jsonl")
    metrics.refresh()
    _append(folder, _line(1, loss=7.0))
    metrics.refresh()
    assert list(metrics.losses) == [7.0]
    (folder / "metrics.partial.jsonl").write_text("")
    metrics.refresh()
    assert list(metrics.losses) == []


@pytest.mark.parametrize(
    "line", ["{", "[]", "null", '{"loss": 1}', '{"step": "x", "loss": 1}', '{"step": 1, "loss": {}}', "\0", "[" * 9999]
)
def test_damaged_lines_are_left_out_and_counted(folder: Path, line: str) -> None:
    _append(folder, _line(1) + line + "\n" + _line(2))
    metrics = Metrics(folder)
    metrics.refresh()
    assert (list(metrics.steps), metrics.num_damaged) == ([1, 2], 1)
    assert len(metrics.steps) == len(metrics.losses) == len(metrics.rates) == len(metrics.seconds)


def test_losses_that_are_none_are_no_points(folder: Path) -> None:
    _append(folder, "".join(_line(step, loss=None if step % 2 else 1.0) for step in range(1, 9)))
    metrics = Metrics(folder)
    metrics.refresh()
    assert math.isnan(metrics.losses[0])
    (loss,) = [chart for chart in charts(metrics) if chart.title == "Loss"]
    assert list(loss.lines[0].xs) == [2, 4, 6, 8]


def test_a_run_with_no_number_at_all_has_no_chart_of_it(folder: Path) -> None:
    _append(folder, _line(1, loss=None, lr=None, seconds=None))
    metrics = Metrics(folder)
    metrics.refresh()
    assert charts(metrics) == []


def test_a_long_run_is_few_points(tmp_path: Path) -> None:
    metrics = Metrics(write_run(tmp_path / "long", 100_000))
    metrics.refresh()
    assert len(metrics.steps) == 100_000
    found = charts(metrics)
    assert [chart.title for chart in found] == [
        "Loss",
        "Accuracy, %",
        "Learning rate",
        "Steps a second, evaluations included",
    ]
    assert max(len(line.xs) for chart in found for line in chart.lines) <= 1200
    speed = found[3].lines[0].ys
    assert min(speed) == pytest.approx(100, rel=0.01) == max(speed)
