"""The tutorials, block by block, as a reader types them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import BLOCK, run_block

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
# One builds the C++ driver, another gets a model of 22M parameters, and the others take many commands.
_SLOW = ("board", "encoder", "classifier", "answers", "devices")
# Lines that a reader sees, by page.
_SEEN = {
    "classifier": (r"⟦ bad⟧", r"bad\tThe bed was ugly and messy\. Label:", r"accuracy  100\.0%", "peft-adapter  peft"),
    "answers": (r"(I enjoyed the music\.\s+){2}",),
    "board": ("run folder  *runs/board|runs/board",),
    "encoder": (r"accuracy +33\.3% -> 100\.0%", r"question\tHow do I open the lid\?", r"accuracy=1\.0"),
    "devices": (r"round 3, 4 of 4 devices",),
}


def test_every_tutorial_is_tried() -> None:
    assert {path.stem for path in TUTORIALS.iterdir()} == _SEEN.keys()


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page in _SLOW else page for page in _SEEN]
)
def test_blocks_run_in_order(page: str, tmp_path: Path) -> None:
    blocks = list(BLOCK.finditer((TUTORIALS / f"{page}.md").read_text(encoding="utf-8")))
    assert blocks
    said = "".join(run_block(block, tmp_path) for block in blocks)
    for seen in _SEEN[page]:
        assert re.search(seen, said), said
