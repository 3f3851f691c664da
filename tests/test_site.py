"""The site of the documents: it builds, every page has its place, and nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import prgec
from prgec.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
# Reports and decisions are reached from the pages that name them.
_WITHOUT_PLACE = ("reports", "decisions")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # The makers of the theme announce another one in the output.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_has_its_place() -> None:
    places = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert places == {page for page in pages if not page.startswith(_WITHOUT_PLACE)}


def test_every_command_and_name_has_its_entry(site: Path) -> None:
    commands = (site / "reference" / "commands" / "index.html").read_text(encoding="utf-8")
    names = (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f'id="prgec-{name}"' not in commands and f'id="{name}"' not in commands] == []
    assert "Sentinel" not in commands
    assert [name for name in prgec.__all__ if name[0] != "_" and f"prgec.{name}" not in names] == []


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    source = re.compile(r'<(?:script|img|iframe)[^>]*src="(https?:[^"]+)"')
    sheet = re.compile(r'<link[^>]*rel="stylesheet"[^>]*href="(https?:[^"]+)"')
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert {path: hosts for path, text in pages.items() if (hosts := source.findall(text) + sheet.findall(text))} == {}
