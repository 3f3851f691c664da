"""The chat set of tools/make_chat.py: one style in every answer, and no subject in both splits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_every_answer_has_the_style(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import make_chat

    make_chat.write(tmp_path)
    things = {}
    for split, least in (("train", 150), ("dev", 25)):
        rows = [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()]
        assert len(rows) >= least
        for row in rows:
            asked, answered = row["messages"]
            assert (asked["role"], answered["role"]) == ("user", "assistant")
            assert asked["content"][-1] in "?."
            assert re.fullmatch(r"Roger! [A-Z][\w ]+\. Over and out\.", answered["content"])
        things[split] = {row["messages"][0]["content"] for row in rows}
        assert len(things[split]) == len(rows)
    assert not things["train"] & things["dev"]
