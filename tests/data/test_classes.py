from __future__ import annotations

import pytest

from prgec.core.data.classes import target_of, texts_of
from prgec.core.data.task import Example
from prgec.errors import DataError

PAIR = Example("Sentence 1: a\nSentence 2: b\n", "Yes", "f, line 1", texts=("a", "b"), classes=("No", "Yes"))
FREE = Example("a", "negative", "f, line 1")


def test_what_is_read() -> None:
    assert texts_of(PAIR) == ("a", "b")
    assert texts_of(FREE) == ("a",)
    assert texts_of(Example("p", None, "", texts=("a", "b", "c"))) == ("p",)


@pytest.mark.parametrize(
    ("example", "answer", "classes", "expected"),
    [
        (PAIR, "Yes", ("LABEL_0", "LABEL_1"), 1),
        (PAIR, "LABEL_1", ("LABEL_0", "LABEL_1"), 1),
        (FREE, " Negative", ("NEGATIVE", "POSITIVE"), 0),
        (FREE, "3.8", ("LABEL_0",), 3800),
        (FREE, "0", ("LABEL_0",), 0),
    ],
)
def test_targets(example: Example, answer: str, classes: tuple[str, ...], expected: int) -> None:
    assert target_of(example, answer, classes) == expected


@pytest.mark.parametrize(
    ("example", "answer", "classes", "message"),
    [
        (PAIR, "Yes", ("a", "b", "c"), "the task has 2 answers, the model 3 classes"),
        (FREE, "Yes", ("a", "b"), "the answer 'Yes' is not one of the model's classes.*known: a, b"),
        (FREE, "-1", ("a",), "the answer '-1' is not a score of 0 or more"),
        (FREE, "nan", ("a",), "is not a score"),
        (FREE, "good", ("a",), "is not a score"),
    ],
)
def test_what_is_no_answer(example: Example, answer: str, classes: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        target_of(example, answer, classes)
