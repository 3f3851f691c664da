"""Records become prompts and completions by the table of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prgec.core.data.dataset import load_dataset, load_datasets
from prgec.core.data.task import Example
from prgec.errors import DataError, UsageError


def _write(tmp_path: Path, *records: dict[str, Any]) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_sst2_template(tmp_path: Path) -> None:
    path = _write(tmp_path, {"sentence": " a joy . ", "label": 1}, {"sentence": "dull", "label": 0})
    dataset = load_dataset(path)
    assert dataset.task.name == "sst2"
    assert [(e.prompt, e.completion) for e in dataset.examples] == [
        ("a joy . It was", " great"),
        ("dull It was", " terrible"),
    ]
    assert dataset.candidates() == (" terrible", " great")


def test_template_does_not_expand_braces_of_the_text(tmp_path: Path) -> None:
    path = _write(tmp_path, {"sentence": "{text} {label}", "label": 1})
    assert load_dataset(path).examples[0].prompt == "{text} {label} It was"


@pytest.mark.parametrize(
    ("label", "completion"), [(0, " terrible"), ("1", " great"), ("Negative", " terrible"), (1.0, " great")]
)
def test_label_spellings(tmp_path: Path, label: Any, completion: str) -> None:
    assert load_dataset(_write(tmp_path, {"sentence": "x", "label": label})).examples[0].completion == completion


@pytest.mark.parametrize("label", [2, -1, "good", True, None, 0.5, [1]])
def test_unknown_label(tmp_path: Path, label: Any) -> None:
    path = _write(tmp_path, {"sentence": "x", "label": 0}, {"sentence": "x", "label": label})
    with pytest.raises(DataError, match=r"unknown label .* for task sst2 \(.*line 2\)"):
        load_dataset(path)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"sentence": "x"}, 'missing field "label"'),
        ({"label": 1}, "cannot infer the task from the fields"),
        ({"prompt": "x"}, 'missing field "completion".*run with --reward'),
        ({"prompt": "x", "completion": ""}, 'field "completion" is empty'),
    ],
)
def test_bad_first_record(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset(_write(tmp_path, record))


def test_missing_field_in_a_later_record(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r'missing field "sentence": found label; task sst2 needs sentence, label \(.*line 2\)'
    ):
        load_dataset(_write(tmp_path, {"sentence": "x", "label": 1}, {"label": 1}))


def test_completion_task_keeps_text_as_written(tmp_path: Path) -> None:
    dataset = load_dataset(_write(tmp_path, {"prompt": " 2+2=", "completion": "4 "}))
    assert (dataset.examples[0].prompt, dataset.examples[0].completion) == (" 2+2=", "4 ")
    assert dataset.task.name == "completion"


@pytest.mark.parametrize(("distinct", "expected"), [(1, 0), (2, 2), (16, 16), (17, 0)])
def test_candidates_of_free_text(tmp_path: Path, distinct: int, expected: int) -> None:
    records = [{"prompt": "p", "completion": f"c{i % distinct:02d}"} for i in range(40)]
    candidates = load_dataset(_write(tmp_path, *records)).candidates()
    assert len(candidates) == expected
    assert list(candidates) == sorted(candidates)


def test_answers_that_are_never_repeated_are_no_choice(tmp_path: Path) -> None:
    records = [{"prompt": "p", "completion": f"c{i}"} for i in range(5)]
    assert load_dataset(_write(tmp_path, *records)).candidates() == ()


def test_a_dev_file_with_fewer_classes_knows_those_of_the_other_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {"train": "abcabc", "dev": "aad"}
    for name, answers in files.items():
        (tmp_path / name).write_text("\n".join(json.dumps({"prompt": "p", "completion": each}) for each in answers))
    train, dev = load_datasets([tmp_path / "train", tmp_path / "dev"])
    assert train.candidates() == dev.candidates() == ("a", "b", "c", "d")
    assert not any(each.ends for each in (*train.examples, *dev.examples) if isinstance(each, Example))
    assert caplog.messages == [f"{dev.path} has the answers 'd', which {train.path} never gives"]
    assert load_dataset(tmp_path / "dev").candidates() == ("a", "d")


@pytest.mark.parametrize(("answers", "found"), [("aa", ("a", "b")), ("ab", ("a", "b")), ("cc", ()), ("ca", ())])
def test_a_file_of_few_answers_is_a_choice_of_what_a_program_knows(
    tmp_path: Path, answers: str, found: tuple[str, ...]
) -> None:
    dataset = load_dataset(_write(tmp_path, *({"prompt": "p", "completion": each} for each in answers)))
    known = dataset.choosing_from(("a", "b"))
    assert known.candidates() == found
    assert [each.ends for each in known.examples if isinstance(each, Example)] == [not found] * 2
    # Nothing changes where a task has its own answers, or the program knows none.
    assert dataset.choosing_from(()) is dataset
    sst2 = load_dataset(_write(tmp_path, {"sentence": "x", "label": 1}))
    assert sst2.choosing_from((" great",)) is sst2


def test_a_sample_keeps_the_answers_of_all(tmp_path: Path) -> None:
    records = [{"prompt": "p", "completion": "ab"[i > 0]} for i in range(30)]
    assert load_dataset(_write(tmp_path, *records)).sample(2, seed=0).candidates() == ("a", "b")


@pytest.mark.parametrize(
    ("answers", "no_eos", "ends"), [("abc", False, True), ("abc", True, False), ("aab", False, False)]
)
def test_free_answers_learn_their_end(tmp_path: Path, answers: str, no_eos: bool, ends: bool) -> None:
    path = _write(tmp_path, *({"prompt": "p", "completion": each} for each in answers))
    examples = load_dataset(path, no_eos=no_eos).examples
    assert [each.ends for each in examples if isinstance(each, Example)] == [ends] * 3


def test_unlabelled_records(tmp_path: Path) -> None:
    dataset = load_dataset(_write(tmp_path, {"sentence": "x"}), labelled=False)
    assert dataset.examples[0].completion is None


def test_named_task(tmp_path: Path) -> None:
    path = _write(tmp_path, {"sentence": "x", "label": 1, "prompt": "p", "completion": "c"})
    assert load_dataset(path, "completion").examples[0].prompt == "p"
    with pytest.raises(UsageError, match="unknown task 'mnl1'"):
        load_dataset(path, "mnl1")


@pytest.mark.parametrize(
    ("name", "record", "expected"),
    [
        ("CoLA/dev.jsonl", {"sentence": "x", "label": 1}, ("cola", "Yes")),
        ("mnli_mismatched.jsonl", {"premise": "p", "hypothesis": "h", "label": 2}, ("mnli", "No")),
        ("MNLI/dev.jsonl", {"sentence1": "p", "sentence2": "h", "gold_label": "neutral"}, ("mnli", "Maybe")),
        ("STS-B/dev.jsonl", {"sentence1": "p", "sentence2": "h", "score": 3.8}, ("stsb", "3.8")),
        ("sst2.jsonl", {"sentence": "x", "label": 1}, ("sst2", " great")),
        ("rows.jsonl", {"premise": "p", "hypothesis": "h", "label": 0}, ("rte", "Yes")),
    ],
)
def test_tasks_of_equal_fields_are_told_by_what_files_are_called(
    tmp_path: Path, name: str, record: dict[str, object], expected: tuple[str, str]
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record))
    dataset = load_dataset(path)
    (example,) = dataset.examples
    assert isinstance(example, Example)
    assert (dataset.task.name, example.completion) == expected
    texts = [value for field, value in record.items() if field not in ("label", "gold_label", "score")]
    assert list(example.texts) == texts
