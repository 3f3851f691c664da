"""Several runs on one page: curves over one another, what differs, and seeds as one."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.cli.main import main
from prgec.runtime.report.compare import charts, differences, group, tables, to_html
from prgec.runtime.report.record import RunRecord, read_run
from prgec.runtime.report.thin import thin
from tests.report.test_report import SUMMARY, _Page, _write


def _run(tmp_path: Path, name: str, accuracy: float = 0.9, **options: Any) -> Path:
    summary = {**SUMMARY, "accuracy": accuracy, "options": {"lr": 0.1, "seed": 0, "out": name, **options}}
    return _write(tmp_path / name, summary)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Three seeds of one rate, and another rate."""
    seeds = [_run(tmp_path, f"seed-{seed}", 0.7 + 0.1 * seed, seed=seed) for seed in range(3)]
    return [*seeds, _run(tmp_path, "fast", 0.6, lr=0.5)]


def _records(runs: list[Path]) -> list[RunRecord]:
    return [read_run(run) for run in runs]


def test_what_differs_is_reported_and_nothing_else(runs: list[Path]) -> None:
    assert differences(_records(runs)) == ["lr", "seed"]
    assert differences(_records(runs[:1])) == []


def test_programs_that_differ_are_reported(tmp_path: Path) -> None:
    folders = [_run(tmp_path, "a"), _run(tmp_path, "b")]
    summary = json.loads((folders[1] / "run.json").read_text())
    summary["manifest"]["rank"] = 4
    (folders[1] / "run.json").write_text(json.dumps(summary))
    assert differences(_records(folders)) == ["rank"]


def test_seeds_are_one_group(runs: list[Path]) -> None:
    groups = group(_records(runs))
    assert [(each.name, [run.name for run in each.runs]) for each in groups] == [
        ("lr 0.1", ["seed-0", "seed-1", "seed-2"]),
        ("fast", ["fast"]),
    ]
    (scores, options, cost) = tables(groups)
    spread = 100 * statistics.stdev([0.7, 0.8, 0.9])
    assert scores[2] == [
        ["lr 0.1", "0, 1, 2", f"80.0% \u00b1 {spread:.1f}%", "0.2000 \u00b1 0.0000"],
        ["fast", "0", "60.0%", "0.2000"],
    ]
    assert options[1] == ["run", "lr", "seed"]
    assert options[2] == [["seed-0", "0.1", "0"], ["seed-1", "0.1", "1"], ["seed-2", "0.1", "2"], ["fast", "0.5", "0"]]
    assert cost[2][0] == ["seed-0", "complete", "40", "2.50", "1 h 2 m", "123 MB"]


def test_a_group_has_one_color_and_one_name(runs: list[Path]) -> None:
    for chart in charts(group(_records(runs))):
        assert [(line.name, line.style) for line in chart.lines] == [
            ("lr 0.1", "s1"),
            ("", "s1"),
            ("", "s1"),
            ("fast", "s2"),
        ]


def test_the_page_needs_nothing_else(runs: list[Path]) -> None:
    page = _Page(to_html(_records(runs)))
    assert page.tags.count("figure") == 3 and page.tags.count("table") == 3
    assert "80.0%" in " ".join(page.text)


def test_runs_that_have_nothing_yet(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "metrics.partial.jsonl").write_text('{"step": 1, "lo')
    page = _Page(to_html(_records([_write(tmp_path / "going"), empty])))
    assert " ".join(page.text).count("under way") == 2


def test_more_groups_than_colors(tmp_path: Path) -> None:
    found = group(_records([_run(tmp_path, f"run-{n}", lr=float(n)) for n in range(17)]))
    assert len({each.style for each in found[:16]}) == 16
    assert (found[8].style, found[16].style) == ("s1 dashes", "s1")


def test_names_are_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    page = _Page(to_html(_records([_run(tmp_path, "a", task=evil), _run(tmp_path, "<b>")])))
    assert evil in page.text and "b" not in page.tags


def test_command(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *map(str, runs), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "output": str(tmp_path / "compare.html"),
        "bytes": (tmp_path / "compare.html").stat().st_size,
        "steps": 160,
        "runs": 4,
    }
    assert main(["report", *map(str, runs), "-o", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").exists()
    assert main(["report", "--side", *map(str, runs)]) == 2


@pytest.mark.parametrize("most", [4, 100, 101])
def test_a_thin_line_keeps_ends_and_spikes(most: int) -> None:
    ys = np.random.default_rng(0).normal(size=10_000)
    ys[7777], ys[1234] = 50.0, -60.0
    xs, kept = thin(list(range(10_000)), ys.tolist(), most)
    assert len(xs) <= most and (xs[0], xs[-1]) == (0, 9999) and xs == sorted(xs)
    assert max(kept) == 50.0 and min(kept) == -60.0
    assert kept == [ys[int(x)] for x in xs]


def test_a_short_line_stays_as_it_is() -> None:
    assert thin([1, 2, 3], [5.0, 4.0, 3.0], 4) == ([1, 2, 3], [5.0, 4.0, 3.0])
