"""The pages that explain: their commands run, and what they show is what the commands print or write."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)


def _run(block: re.Match[str], folder: Path) -> str:
    """Run a block; return what it prints."""
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    shell = {"bash": ["bash", "-eu", "-c"], "python": [sys.executable, "-c"]}[block["language"]]
    done = subprocess.run(
        [*shell, block["code"]],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, block["code"] + done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", ["first-pass", "how-it-works"])
def test_pages_show_what_is_so(page: str, tmp_path: Path) -> None:
    """A block of text is in the file that the page names last before it, else in the output so far."""
    text, printed, shown = (DOCS / f"{page}.md").read_text(encoding="utf-8"), "", 0
    for block in _BLOCK.finditer(text):
        if block["language"] != "text":
            printed += _run(block, tmp_path)
            continue
        named = re.findall(r"`(\w+/[\w-]+\.txt)`", text[: block.start()])
        found = (tmp_path / named[-1]).read_text(encoding="utf-8") if named else printed
        for line in block["code"].splitlines():
            assert line.removesuffix("...").rstrip() in found, line
            shown += 1
    assert shown > 0
