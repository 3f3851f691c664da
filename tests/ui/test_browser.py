"""A real browser: every page is used as a person would, by mouse and by keyboard, without errors in its console.

The screenshots of the documentation are made here, where PRGEC_SCREENSHOTS names a folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import wait_until
from tests.shared import Shared
from tests.supplies import supply
from tests.talking import chat_options
from tests.ui.chromium import NEEDS_CHROMIUM
from tests.ui.chromium import browser as browser
from tests.ui.running import RunningUi
from tests.ui.synthetic import write_run

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = NEEDS_CHROMIUM
STEPS = 20_000
# Elements without a text for screen readers.
NAMELESS = """() => [...document.querySelectorAll("a,button,input:not([type=hidden]),select,textarea,svg,progress")]
    .filter((each) => !(each.innerText?.trim() || each.getAttribute("aria-label") || each.labels?.length))
    .map((each) => each.outerHTML.slice(0, 120))"""
PATIENCE_MS = 300_000


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that complains of nothing: no error of a script, nothing the policy forbids."""
    opened = browser.new_page(viewport={"width": 1100, "height": 800})
    opened.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda told: complaints.append(told.text) if told.type == "error" else None)
    yield opened
    opened.close()
    # After the server has ended, the browser logs refused connections and the page shows it.
    assert [each for each in complaints if "ERR_CONNECTION" not in each] == []


def _shot(page: Any, name: str) -> None:
    if folder := os.environ.get("PRGEC_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def _steps_done(page: Any) -> int:
    return int(page.locator(".now span").nth(1).inner_text().split()[0].replace(",", ""))


def test_start_watch_stop_go_on_compare_predict(
    page: Any, tmp_path: Path, tiny_pte: Path, train_jsonl: Path, dev_jsonl: Path
) -> None:
    write_run(tmp_path / "runs" / "earlier", options={"lr": 0.5, "seed": 0, "program": str(tiny_pte)})
    with RunningUi(tmp_path / "runs", "--program", tiny_pte) as ui:
        page.goto(ui.address)
        assert "token" not in page.url
        page.get_by_role("link", name="New run").first.click()
        page.get_by_label("PROGRAM").fill(str(tiny_pte))
        page.get_by_label("--data", exact=True).fill(str(train_jsonl))
        page.get_by_label("--eval-data", exact=True).fill(str(dev_jsonl))
        page.get_by_label("--steps").fill(str(STEPS))
        page.get_by_label("--lr", exact=True).fill("0.1")
        page.get_by_label("Folder of the run").fill("watched")
        page.get_by_role("button", name="Show the file").click()
        assert f"steps = {STEPS}" in page.locator("pre").first.inner_text()
        page.get_by_role("button", name="Start the run").click()
        page.locator("figure").first.wait_for()
        first = _steps_done(page)
        wait_until(lambda: _steps_done(page) > first + 50)
        _shot(page, "run")
        page.get_by_role("button", name="Stop").click()
        page.locator(".pill", has_text="interrupted").wait_for()
        done = _steps_done(page)
        assert not page.get_by_role("button", name="Stop").is_visible()
        page.get_by_role("button", name="Go on").click()
        page.locator(".pill", has_text="under way").wait_for()
        wait_until(lambda: _steps_done(page) > done)
        page.get_by_role("button", name="Stop").click()
        page.locator(".pill", has_text="interrupted").wait_for()
        _compare(page)
        _predict(page, tiny_pte, tmp_path / "runs" / "watched")


def _compare(page: Any) -> None:
    page.get_by_role("link", name="Runs", exact=True).click()
    for name in ("watched", "earlier"):
        page.get_by_label(f"Compare {name}").check()
    page.wait_for_timeout(1500)
    assert page.locator("input:checked").count() == 2, "what was chosen stays chosen while the list is kept up to date"
    page.get_by_role("button", name="Compare the chosen runs").click()
    page.get_by_role("heading", name="2 runs").wait_for()
    assert page.locator("figure").count() >= 2 and page.get_by_role("heading", name="What differs").is_visible()
    _shot(page, "compare")
    page.go_back()


def _predict(page: Any, program: Path, run: Path) -> None:
    """The page answers as the command does: a run that was stopped anywhere may have learnt nothing yet."""
    page.get_by_role("link", name="watched").click()
    page.get_by_role("link", name="Try it").click()
    texts = ["a lovely film", "a dull plot"]
    page.get_by_label("Texts, one a line").fill("\n".join(texts))
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("heading", name="Answers").wait_for()
    rows = page.locator("tbody tr")
    command = [sys.executable, "-m", "prgec", "predict", str(program), *texts, "--adapter", str(run), "--json"]
    answers = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    expected = [row["completion"].strip() for row in answers["predictions"]]
    assert [rows.nth(place).locator("strong").nth(1).inner_text() for place in (0, 1)] == expected
    _shot(page, "try")


def test_the_demo_in_three_clicks(page: Any, tmp_path: Path) -> None:
    with RunningUi(tmp_path / "runs") as ui:
        page.goto(ui.address)
        page.get_by_role("link", name="Begin with the demo").click()
        page.get_by_role("button", name="Compile").click()
        page.get_by_role("button", name="Train").click()
        page.locator("figure").first.wait_for()
        _shot(page, "demo")
        page.get_by_role("link", name="Try sentences").click()
        page.get_by_role("button", name="Ask").click()
        page.get_by_role("heading", name="Answers").wait_for()
        answers = page.locator("tbody tr td:last-child strong")
        assert [answers.nth(place).inner_text() for place in (0, 1)] == ["great", "terrible"]
        _shot(page, "try-demo")
        page.get_by_role("link", name="Programs").click()
        page.get_by_role("link", name="demo.pte").click()
        assert page.locator("tbody").first.inner_text().strip()
        assert page.locator("pre.graph").count() == 2
        page.get_by_label("find").fill("lora")
        page.get_by_role("button", name="Show").click()
        assert page.locator("mark").count() > 0
        _shot(page, "program")


def test_what_is_said_of_an_answer_changes_the_next(page: Any, tmp_path: Path, shared: Shared) -> None:
    """Talk, press, learn, talk: the answer of the adapter is another, and the page has the rows that it learnt."""
    supply(tmp_path, ["model"])
    sizes = {"seq_len": 96, "num_labels": 64, "context": 64, "label_weights": True}
    program = shared.program(chat_options(tmp_path / "model", **sizes))
    with RunningUi(tmp_path / "runs", "--program", program) as ui:
        page.goto(ui.address)
        page.get_by_role("link", name="Programs").click()
        page.get_by_role("link", name=program.name).click()
        page.get_by_role("link", name="Try it").click()
        for text in ("the film was", "a dull plot and"):
            page.get_by_label("Say something").fill(text)
            page.get_by_role("button", name="Send").click()
            page.locator(".message.assistant").first.wait_for()
            page.get_by_label("A better answer").fill("great")
            page.get_by_role("button", name="Take this one").click()
            page.locator(".message.assistant", has_text="great").last.wait_for()
        (noted,) = (tmp_path / "runs" / ".prgec-ui").glob("feedback-*.jsonl")
        rows = [json.loads(line) for line in noted.read_text().splitlines()]
        assert [row["label"] for row in rows] == [False, True, False, True]
        assert rows[1]["completion"] == [{"role": "assistant", "content": "great"}]
        _shot(page, "feedback")
        page.get_by_role("link", name="Learn from it").click()
        assert page.get_by_label("--data", exact=True).input_value() == str(noted)
        page.get_by_label("--steps").fill("40")
        page.get_by_label("--lr", exact=True).fill("0.05")
        page.get_by_label("Folder of the run").fill("taught")
        page.get_by_role("button", name="Start the run").click()
        page.locator(".pill", has_text="complete").wait_for()
        page.get_by_role("link", name="Try it").click()
        page.get_by_label("Say something").fill("the film was")
        page.get_by_role("button", name="Send").click()
        sides = page.locator(".sides section p")
        sides.first.wait_for()
        base, taught = (sides.nth(place).inner_text() for place in (0, 1))
        assert base != taught and taught.startswith("great")


def test_a_run_goes_on_without_the_page(page: Any, tmp_path: Path, tiny_pte: Path, train_jsonl: Path) -> None:
    with RunningUi(tmp_path / "runs") as ui:
        _, _, place = ui.post("/runs/new", program=tiny_pte, data=train_jsonl, name="on", steps=STEPS * 10, do="start")
        page.goto(ui.address)
        page.goto(ui.origin + place)
        page.locator("figure").first.wait_for()
    page.get_by_text("no answer: prgec ui has ended; runs go on").wait_for()
    with RunningUi(tmp_path / "runs") as again:
        page.goto(again.address)
        page.get_by_role("link", name="on", exact=True).click()
        first = _steps_done(page)
        wait_until(lambda: _steps_done(page) > first)
        page.get_by_role("button", name="Stop").click()
        page.locator(".pill", has_text="interrupted").wait_for()


def test_everything_is_reached_by_keyboard_and_has_a_name(page: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one")
    with RunningUi(tmp_path / "runs") as ui:
        page.goto(ui.address)
        page.keyboard.press("Tab")
        assert page.locator(":focus").inner_text() == "Skip to the content"
        for path in ("/", "/runs/new", "/programs", "/programs/new", "/demo", f"/runs/{ui.id_of('one')}"):
            page.goto(ui.origin + path)
            assert page.locator("h1").count() == 1 and page.locator("html[lang=en]").count() == 1
            nameless = page.evaluate(NAMELESS)
            assert nameless == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_pages_do_not_scroll_sideways(browser: Any, tmp_path: Path, scheme: str) -> None:
    for number in range(3):
        write_run(tmp_path / "runs" / f"run-{number}", options={"lr": 0.1 * number, "seed": 0})
    with RunningUi(tmp_path / "runs") as ui:
        context = browser.new_context(viewport={"width": 400, "height": 800}, color_scheme=scheme)
        narrow = context.new_page()
        narrow.goto(ui.address)
        ids = [ui.id_of(f"run-{number}") for number in range(3)]
        compare = "/compare?" + "&".join(f"run={each}" for each in ids)
        for name, path in {"list": "/", "run": f"/runs/{ids[0]}", "new": "/runs/new", "compare": compare}.items():
            narrow.goto(ui.origin + path)
            assert narrow.evaluate("document.documentElement.scrollWidth") <= 400, path
            _shot(narrow, f"{name}-400-{scheme}")
        context.close()
