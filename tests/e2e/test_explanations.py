"""The pages that explain: their commands run, and what they show is what the commands print or write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import BLOCK, run_block

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["first-pass", "how-it-works"])
def test_pages_show_what_is_so(page: str, tmp_path: Path) -> None:
    """A block of text is in the file that the page names last before it, else in the output so far."""
    text, printed, shown = (DOCS / f"{page}.md").read_text(encoding="utf-8"), "", 0
    for block in BLOCK.finditer(text):
        if block["language"] != "text":
            printed += run_block(block, tmp_path)
            continue
        named = re.findall(r"`(\w+/[\w-]+\.txt)`", text[: block.start()])
        found = (tmp_path / named[-1]).read_text(encoding="utf-8") if named else printed
        for line in block["code"].splitlines():
            assert line.removesuffix("...").rstrip() in found, line
            shown += 1
    assert shown > 0
