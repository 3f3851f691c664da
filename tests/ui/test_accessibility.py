"""Every page as axe-core judges it: contrast, names, roles, headings, landmarks, tables and forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prgec.cli.main import main
from tests.ui.chromium import NEEDS_CHROMIUM
from tests.ui.chromium import browser as browser
from tests.ui.running import RunningUi
from tests.ui.synthetic import write_run

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

pytestmark = NEEDS_CHROMIUM
# Rules of WCAG 2.2 AA and axe's own best practices.
OPTIONS = {"resultTypes": ["violations"]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, tiny_pte: Path, train_jsonl: Path) -> Path:
    """Runs that are done, under way and broken, a fleet, and a program."""
    root = tmp_path_factory.mktemp("pages") / "runs"
    for name in ("one", "two"):
        write_run(root / name, program=str(tiny_pte))
    write_run(root / "cut", is_done=False)
    flags = ["--rounds", "2", "--devices", "2", "--local-steps", "2", "--lr", "0.05", "--out", str(root / "fleet")]
    assert main(["federate", "simulate", str(tiny_pte), "--data", str(train_jsonl), *flags]) == 0
    return root


def _violations(page: Any) -> list[str]:
    """Return what axe finds, with the place of each."""
    found = axe.Axe().run(page, options=OPTIONS).response["violations"]
    return [f"{each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, root: Path, tiny_pte: Path, scheme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    found: list[str] = []
    with RunningUi(root, "--program", tiny_pte) as ui:
        page.goto(ui.address)
        run, other, cut = (ui.id_of(name) for name in ("one", "two", "cut"))
        paths = ["/", f"/runs/{run}", f"/runs/{cut}", f"/compare?run={run}&run={other}", "/runs/new", "/devices"]
        paths += ["/programs", "/programs/new", "/demo", "/nowhere"]
        for path, link in ((paths[5], "fleet"), ("/programs", tiny_pte.name)):
            page.goto(ui.origin + path)
            paths.append(str(page.get_by_role("link", name=link).first.get_attribute("href")))
        paths.append(f"{paths[-1]}/try")
        for path in paths:
            page.goto(ui.origin + path)
            found += [f"{path}: {each}" for each in _violations(page)]
    context.close()
    assert found == [], "\n".join(found)


def test_axe_finds_nothing_in_a_report(browser: Any, root: Path, tmp_path: Path) -> None:
    assert main(["report", str(root / "one"), "-o", str(tmp_path / "report.html")]) == 0
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((tmp_path / "report.html").as_uri())
    found = _violations(page)
    assert found == [], "\n".join(found)
    page.close()


def test_axe_sees_what_is_wrong(browser: Any) -> None:
    page = browser.new_page()
    page.set_content("<html><body><img src='x'><button></button></body></html>")
    assert {each.partition(":")[0] for each in _violations(page)} >= {"image-alt", "button-name", "html-has-lang"}
    page.close()
