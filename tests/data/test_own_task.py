"""A task in a TOML file is as good as one of the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prgec.core.data.dataset import load_dataset
from prgec.core.data.task import SPAN_F1, Example
from prgec.core.data.tasks import find_task
from prgec.errors import UsageError

TICKETS = """
template = "Ticket: {subject}\\n{body}\\nUrgent?"
candidates = [" No", " Yes"]
answer_field = "urgent"
labels = { no = 0, yes = 1 }
"""


def _task(tmp_path: Path, text: str) -> str:
    path = tmp_path / "tickets.toml"
    path.write_text(text)
    return str(path)


def test_classification(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"subject": "Fire", "body": " {subject} ", "urgent": "YES"}))
    dataset = load_dataset(rows, _task(tmp_path, TICKETS))
    assert dataset.examples == (Example("Ticket: Fire\n{subject}\nUrgent?", " Yes", f"{rows}, line 1"),)
    assert dataset.candidates() == (" No", " Yes")
    assert dataset.task.name == "tickets"


def test_candidates_of_the_record(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"q": "2+2?", "a": "4", "b": "5", "right": 1}))
    text = 'template = "{q}"\ncandidates = [" {a}", " {b}"]\nanswer_field = "right"'
    dataset = load_dataset(rows, _task(tmp_path, text))
    (example,) = dataset.examples
    assert isinstance(example, Example)
    assert (example.completion, example.candidates) == (" 5", (" 4", " 5"))


def test_free_answers(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"q": "Who?", "who": ["Ada", "Ada L."]}))
    text = 'template = "{q}"\nanswer = " {answer}."\nanswer_field = "who"\nmetric = "f1"'
    dataset = load_dataset(rows, _task(tmp_path, text))
    (example,) = dataset.examples
    assert isinstance(example, Example)
    assert (example.completion, example.references) == (" Ada.", ("Ada", "Ada L."))
    assert dataset.task.metric == SPAN_F1
    assert dataset.candidates() == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("template = ", "cannot read the task file: Invalid value"),
        ('answer_field = "a"', 'the task file has no "template"'),
        ('template = "{a}"', 'the task file has no "answer_field"'),
        ('template = "a"\nanswer_field = "b"', '"template" reads no field'),
        ('template = 3\nanswer_field = "b"', '"template" is int'),
        ('template = "{a}"\nanswer_field = "b"\ncolour = "red"', 'a task has no "colour"'),
        ('template = "{a}"\nanswer_field = "b"\ncandidates = [" x"]', "not a list of two texts"),
        ('template = "{a}"\nanswer_field = "b"\ncandidates = [" x", " x"]', "holds a text twice"),
        ('template = "{a}"\nanswer_field = "b"\ncandidates = ["x", "y"]\nlabels = {z = 2}', "means candidate 2 of 2"),
        ('template = "{a}"\nanswer_field = "b"\ncandidates = ["x", "y"]\nanswer = "{answer}"', "either"),
        ('template = "{a}"\nanswer_field = "b"\nmetric = "accuracy"', "\"metric\" is 'accuracy'"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_task(_task(tmp_path, text))


def test_missing_file() -> None:
    with pytest.raises(UsageError, match=r"no such task file \(none.toml\)"):
        find_task("none.toml")
