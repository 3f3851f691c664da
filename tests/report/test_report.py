"""The report says what the run's files say, in one page that needs nothing else."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from prgec.cli.main import main
from prgec.errors import DataError
from prgec.runtime.report.chart import draw
from prgec.runtime.report.curves import Chart, Curve, loss_chart
from prgec.runtime.report.page import to_html
from prgec.runtime.report.plot import plot_run
from prgec.runtime.report.record import read_run

VOID = {"meta", "br", "polyline", "line", "circle"}


class _Page(HTMLParser):
    """Text of a page; insists on closed tags and on nothing that would be loaded."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href", "srcset", "data"} & {name for name, _ in attrs}
        assert tag not in ("script", "link", "img", "iframe")
        self.tags.append(tag)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _write(folder: Path, summary: dict[str, Any] | None = None, num_steps: int = 40) -> Path:
    folder.mkdir()
    lines: list[dict[str, Any]] = [{"step": 0, "eval_loss": 0.7, "eval_accuracy": 0.5, "seconds": 0.1}]
    lines += [
        {"step": i, "loss": 1 / i, "lr": 0.1, "g": [0.5, -0.25], "seconds": 0.1 * i} for i in range(1, num_steps + 1)
    ]
    lines.append({"step": num_steps, "eval_loss": 0.2, "eval_accuracy": 0.9, "seconds": 5.0})
    name = "metrics.jsonl" if summary is not None else "metrics.partial.jsonl"
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if summary is not None:
        (folder / "run.json").write_text(json.dumps(summary))
    return folder


SUMMARY = {
    "status": "complete",
    "accuracy": 0.9,
    "accuracy_before": 0.5,
    "eval_loss": 0.2,
    "eval_loss_before": 0.7,
    "seconds": 3725.0,
    "steps_per_second": 2.5,
    "peak_rss_bytes": 123_000_000,
    "best_step": None,
    "f1": None,
    "options": {"lr": 0.1, "data": "a&b.jsonl"},
    "state_sha256": "ab" * 32,
    "manifest": {
        "model": "m<1>",
        "backend": "xnnpack",
        "q": 2,
        "batch_size": 3,
        "versions": {"torch": "2.13.0"},
        "sites": [{"name": "layers.0.q"}, {"name": "layers.1.v"}],
    },
    "samples": [{"prompt": "<b>bold</b> film It was", "right": " great", "before": " terrible", "after": " great"}],
}


def test_page_says_what_the_files_say(tmp_path: Path) -> None:
    page = _Page(to_html(read_run(_write(tmp_path / "run", SUMMARY))))
    text = " ".join(page.text)
    for expected in (
        "90.0%",
        "before 50.0%",
        "0.2000",
        "1 h 2 m",
        "123 MB",
        "2.50",
        "30 rows a second",
        "m<1> on xnnpack",
        "40 steps",
        "complete",
        "a&b.jsonl",
        "2, layers.0.q to layers.1.v",
        "2.13.0",
        "<b>bold</b> film It was",
    ):
        assert expected in text, expected
    assert page.tags.count("figure") == 5
    assert "b" not in page.tags, "data are text, never markup"


def test_run_under_way(tmp_path: Path) -> None:
    folder = _write(tmp_path / "run")
    with (folder / "metrics.partial.jsonl").open("a") as file:
        file.write('{"step": 41, "lo')
    text = " ".join(_Page(to_html(read_run(folder))).text)
    assert "under way" in text
    assert "40 steps" in text


def test_run_without_steps_or_evaluations(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("")
    assert "0 steps" in " ".join(_Page(to_html(read_run(folder))).text)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 1.0, "lr": 0.1, "g": [1.0]}) + "\n")
    assert "1 steps" in " ".join(_Page(to_html(read_run(folder))).text)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _write(tmp_path / "run", SUMMARY)
    assert main(["report", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (folder / "report.html").stat().st_size == document["bytes"]
    assert main(["report", str(tmp_path)]) == 4
    assert capsys.readouterr().err.startswith("error: no run in this folder (")
    (folder / "run.json").write_text("{")
    assert main(["report", str(folder)]) == 4
    assert capsys.readouterr().err.startswith("error: the run's files are damaged: ")


@pytest.mark.parametrize("summary", ["[]", "7", '{"options": [1]}', '{"manifest": 7}'])
def test_a_summary_of_another_version_is_reported(tmp_path: Path, summary: str) -> None:
    folder = _write(tmp_path / "run", SUMMARY)
    (folder / "run.json").write_text(summary)
    with pytest.raises(DataError, match="run.json is not what this version writes"):
        read_run(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "has no step"),
        ('{"loss": 1}', "has no step"),
        ('{"step": "1", "loss": 1}', "has no step"),
        ('{"step": 3, "loss": "low"}', "step 3 has something else than numbers"),
        ('{"step": 3, "loss": 1, "lr": []}', "step 3 has something else than numbers"),
    ],
)
def test_metrics_of_another_kind_are_reported(tmp_path: Path, line: str, message: str) -> None:
    folder = _write(tmp_path / "run", SUMMARY)
    (folder / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        read_run(folder)


def _points(svg: str) -> list[tuple[float, float]]:
    (found,) = re.findall(r'points="([^"]*)"', svg)
    return [(float(x), float(y)) for x, y in (point.split(",") for point in found.split())]


@pytest.mark.parametrize("ys", [[1.0], [2.0, 2.0], [0.0, 0.0], [-1e-9, 1e9], [1e-7, 3e-7], [5.0, -5.0, 2.0]])
def test_points_lie_inside_the_chart(ys: list[float]) -> None:
    points = _points(draw(Chart("t", (Curve("a", list(range(1, len(ys) + 1)), ys, "one"),))))
    assert len(points) == len(ys)
    for x, y in points:
        assert 60 <= x <= 500 and 10 <= y <= 250


def test_higher_is_higher() -> None:
    heights = [y for _, y in _points(draw(Chart("t", (Curve("a", [1, 2, 3], [1.0, 5.0, 3.0], "one"),))))]
    assert heights[1] < heights[2] < heights[0]


def test_skipped_steps_are_no_gaps(tmp_path: Path) -> None:
    folder = _write(tmp_path / "run", SUMMARY)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    skipped = {"step": 41, "loss": None, "lr": 0.1, "g": [0.0, 0.0], "limited": "skipped", "seconds": 5.1}
    (folder / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(skipped)]) + "\n")
    assert "41 steps" in " ".join(_Page(to_html(read_run(folder))).text)
    assert loss_chart([2.0, None, float("inf"), 1.0], []).lines[0].ys == [2.0, 2.0, 2.0, 1.0]


def test_markup_in_data_stays_text(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>\n<img src=x>"
    summary = {
        **SUMMARY,
        "status": evil,
        "options": {evil: evil},
        "manifest": {**SUMMARY["manifest"], "model": evil},
        "samples": [{"prompt": evil, "right": evil, "before": evil, "after": ""}],
    }
    page = _Page(to_html(read_run(_write(tmp_path / "<script>", summary))))
    assert "".join(page.text).count("<script>") >= 8
    assert page.tags.count("br") == 3, "line breaks of a text are kept"


def test_steps_without_g_have_no_chart_of_it(tmp_path: Path) -> None:
    folder = _write(tmp_path / "run", SUMMARY)
    text = (folder / "metrics.jsonl").read_text().replace(', "g": [0.5, -0.25]', "")
    (folder / "metrics.jsonl").write_text(text)
    assert _Page(to_html(read_run(folder))).tags.count("figure") == 4


@pytest.mark.parametrize("losses", [[], [1.0], [2.0, float("nan"), 1.0]])
@pytest.mark.parametrize("scores", [[], [(0, 0.7, None)], [(0, 0.7, 0.5), (2, 0.2, 0.9)]])
def test_every_run_can_be_drawn(
    losses: list[float], scores: list[tuple[int, float, float | None]], tmp_path: Path
) -> None:
    plot_run(tmp_path / "plot.png", losses, scores, "a run")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
