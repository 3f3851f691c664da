"""Answers are compared as SQuAD compares them; values worked out by hand."""

from __future__ import annotations

import pytest

from prgec.core.data.answers import exact_match, token_f1


@pytest.mark.parametrize(
    ("answer", "references", "matches", "f1"),
    [
        ("Denver Broncos", ["The Denver Broncos!"], 1.0, 1.0),
        ("Broncos", ["Denver Broncos"], 0.0, 2 / 3),
        ("the the", ["a"], 1.0, 1.0),
        ("", ["red"], 0.0, 0.0),
        ("red red blue", ["red", "red blue"], 0.0, 0.8),
        ("U.S.", ["US"], 1.0, 1.0),
        ("theatre", ["atre"], 0.0, 0.0),
        ("x  y\n", ["y x"], 0.0, 1.0),
    ],
)
def test_scores(answer: str, references: list[str], matches: float, f1: float) -> None:
    assert exact_match(answer, references) == matches
    assert token_f1(answer, references) == pytest.approx(f1)
