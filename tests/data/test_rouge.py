from __future__ import annotations

import json
from pathlib import Path

import pytest

from prgec.core.data.dataset import load_dataset
from prgec.core.data.rouge import rouge
from prgec.core.data.task import ROUGE, Example


def test_by_hand() -> None:
    """The answer has 4 words, the reference 3, all of them in it: P 3/4, R 1; pairs 1 of 3 and of 2; order as is."""
    found = rouge(["the cat was sat"], [["the cat sat"]])
    assert (found.rouge1, found.rouge2, found.rouge_l) == pytest.approx((6 / 7, 2 / 5, 6 / 7))


def test_the_best_reference_counts_and_examples_are_averaged() -> None:
    found = rouge(["a b", "c"], [["x", "a b"], ["d"]])
    assert (found.rouge1, found.rouge_l) == (0.5, 0.5)


def test_dialogues(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": "1", "dialogue": "#Person1#: Hi.", "summary": "They greet.", "topic": "t"}))
    dataset = load_dataset(path)
    (example,) = dataset.examples
    assert isinstance(example, Example)
    assert (dataset.task.name, dataset.task.metric) == ("dialogsum", ROUGE)
    assert (example.prompt, example.completion) == ("#Person1#: Hi.\nSummary:", " They greet.\n")
