"""The picture of memory against context length, alone and in a page."""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path

import pytest

from prgec.cli.main import main
from prgec.compiler.plan.chart import curves, plot_plan
from prgec.compiler.plan.memory import memory_of
from prgec.compiler.plan.options import PlanOptions
from prgec.compiler.plan.plan import Plan, make_plan
from prgec.compiler.plan.source import known_models, read_shape
from prgec.compiler.plan.speed import reported_speed


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(read_shape("TinyLlama-1.1B"), PlanOptions(memory=4 * 10**9), reported_speed("xnnpack"), "m")


def test_every_way_has_a_curve_that_rises(plan: Plan) -> None:
    found = curves(plan)
    assert len(found) == 10
    for points in found.values():
        assert [length for length, _ in points] == [64 << power for power in range(10)]
        assert [size for _, size in points] == sorted(size for _, size in points)


def test_the_curve_of_the_choice_goes_through_what_was_planned(plan: Plan) -> None:
    work = plan.choice.row.work
    points = dict(curves(plan)[f"prgec {work.method}, {work.quantize}"])
    assert points[plan.options.seq_len] == memory_of(plan.shape, work).total


def test_a_picture(plan: Plan, tmp_path: Path) -> None:
    plot_plan(tmp_path / "plan.png", plan)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_says_what_the_terminal_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.html"
    assert main(["plan", "TinyLlama-1.1B", "--memory", "4G", "--html", str(path)]) == 0
    page, printed = html.unescape(path.read_text(encoding="utf-8")), capsys.readouterr().out
    for line in filter(None, (line.strip() for line in printed.splitlines())):
        told = re.sub("^(- |take |times are of )", "", line)
        assert all(words.strip() in page for words in re.split("  +|: ", told)), line
    picture = re.search(r'src="data:image/png;base64,([^"]+)"', page)
    assert picture is not None and base64.b64decode(picture[1]).startswith(b"\x89PNG")
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_page_escapes_names(tmp_path: Path) -> None:
    folder = tmp_path / "<b>model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(known_models()["OPT-125M"]), encoding="utf-8")
    assert main(["plan", str(folder), "--memory", "4G", "--html", str(tmp_path / "plan.html")]) == 0
    assert "<b>" not in (tmp_path / "plan.html").read_text(encoding="utf-8")
