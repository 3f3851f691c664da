"""Files of feedback, in the fields that TRL documents: which answers they hold, and which of them are good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prgec.core.data.dataset import Dataset, load_dataset, load_feedback
from prgec.core.data.task import Conversation, Example, Item
from prgec.errors import DataError

USER, YO, NO = (
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "assistant", "content": "no"},
)


def _load(tmp_path: Path, *records: dict[str, Any], **how: Any) -> Dataset:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return load_feedback(path, **how)


def _said(item: Item) -> tuple[Any, ...]:
    if isinstance(item, Conversation):
        return tuple(turn["content"] for turn in item.messages)
    assert isinstance(item, Example)
    return item.prompt, item.completion


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": [USER], "chosen": [YO], "rejected": [NO]},
        {"chosen": [USER, YO], "rejected": [USER, NO]},
        # As UltraFeedback is published.
        {"prompt": "hi", "chosen": [USER, YO], "rejected": [USER, NO]},
        {"prompt": [USER], "chosen": "yo", "rejected": "no"},
    ],
)
def test_conversations(tmp_path: Path, record: dict[str, Any]) -> None:
    found = _load(tmp_path, record)
    assert list(map(_said, found.examples)) == [("hi", "yo"), ("hi", "no")]
    assert found.is_good == (True, False) and found.is_paired


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " black."},
        {"chosen": "The sky is blue.", "rejected": "The sky is black."},
    ],
)
def test_texts(tmp_path: Path, record: dict[str, Any]) -> None:
    found = _load(tmp_path, record)
    assert list(map(_said, found.examples)) == [("The sky is", " blue."), ("The sky is", " black.")]
    assert all(isinstance(each, Example) and each.ends for each in found.examples)
    bare = _load(tmp_path, record, no_eos=True)
    assert not any(isinstance(each, Example) and each.ends for each in bare.examples)


def test_single_answers_and_answers_to_other_prompts(tmp_path: Path) -> None:
    rows = [("a", " 1", True), ("a", " 2", False), ("b", " 3", "true"), ("c", " 4", 0)]
    records = [{"prompt": p, "completion": c, "label": label} for p, c, label in rows]
    found = _load(tmp_path, *records, with_others=True)
    assert found.is_good == (True, False, True, False) and not found.is_paired
    assert list(map(_said, found.others)) == [("a", " 3"), ("a", " 3"), ("b", " 4"), ("c", " 1")]
    assert _load(tmp_path, *records).others == ()


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"prompt": "p", "completion": "c"}], 'field "label" is None; expected true'),
        ([{"prompt": "p", "completion": "c", "label": "maybe"}], "field \"label\" is 'maybe'"),
        ([{"chosen": "Yes", "rejected": "No"}], "do not begin with one prompt"),
        ([{"chosen": [USER, YO], "rejected": [USER]}], "do not begin with one prompt"),
        ([{"chosen": [USER, YO], "rejected": "no"}], '"chosen" and "rejected" are list and str'),
        ([{"prompt": "p", "chosen": "c", "rejected": ""}], 'field "completion" is empty'),
        ([{"prompt": "p", "chosen": "c", "rejected": "r", "weight": 2}], "objectives weigh answers themselves"),
        (
            [{"prompt": "p", "chosen": "c", "rejected": "r"}, {"prompt": "p", "completion": "c", "label": True}],
            "line 2: mixed formats|mixed formats.*line 2",
        ),
    ],
)
def test_bad_rows_are_refused_by_name(tmp_path: Path, records: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        _load(tmp_path, *records)


def test_who_only_counts_reads_them_as_answers(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "p", "chosen": "c", "rejected": "r"}) + "\n")
    assert list(map(_said, load_dataset(path, takes_feedback=True).examples)) == [("p", "c"), ("p", "r")]
    with pytest.raises(DataError, match="--objective dpo"):
        load_dataset(path)
