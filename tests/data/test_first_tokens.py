"""Rows that end where an answer begins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import encode_pair
from prgec.core.data.first_tokens import encode_dataset, encode_first_tokens, first_tokens_of, up_to_first
from prgec.core.data.task import Document, Example
from prgec.errors import DataError
from tests.tiny_program import MANIFEST

SIDE = replace(MANIFEST, num_labels=1)


class Words:
    """One token for each word with the space before it; the token of a word depends on nothing else."""

    bos_id = 1

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    classes: tuple[str, ...] = ()

    def encode_texts(self, texts: Sequence[str]) -> list[int]:
        raise NotImplementedError

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        parts = text.replace(" ", "\n ").split("\n")
        return [1, *(self.ids.setdefault(part, 2 + len(self.ids)) for part in parts if part)]

    def encode_spans(self, text: str) -> tuple[list[int], Sequence[tuple[int, int]]]:
        ids = self.encode(text)
        return ids, [(0, 0)] * len(ids)

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> tuple[list[int], list[bool]]:
        raise NotImplementedError


EXAMPLES = [Example("a b c", " no way", "line 1"), Example("d", " yes", "line 2")]


def test_rows_end_where_the_answer_begins() -> None:
    words = Words()
    words.encode(" yes no")
    found = encode_first_tokens(EXAMPLES, (" no way", " yes"), words, SIDE)
    yes, no = words.ids[" yes"], words.ids[" no"]
    assert found.first_tokens.tolist() == [yes, no] and found.choices == (" yes", " no way")
    assert found.answers == (1, 0)
    assert [row.tokens for row in found.rows] == [tuple(words.encode("a b c")), tuple(words.encode("d"))]
    assert [row.label_pos for row in found.rows] == [(3,), (1,)]
    assert found.prompts == ("a b c", "d")


def test_rows_with_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"sentence": "a", "label": 1, "weight": 0.5}) + "\n")
    with pytest.raises(
        DataError, match="weight 0.5, and side networks learn without weights.*line 1|line 1.*weight 0.5"
    ):
        encode_dataset(load_dataset(path), Words(), SIDE)


def test_the_order_of_the_candidates_means_nothing() -> None:
    words = Words()
    first = encode_first_tokens(EXAMPLES, (" no way", " yes"), words, SIDE)
    again = encode_first_tokens(EXAMPLES, (" yes", " no way"), words, SIDE)
    assert (first.choices, first.answers) == (again.choices, again.answers)


def test_a_long_prompt_loses_its_left() -> None:
    text = " ".join(f"w{number}" for number in range(60))
    found = encode_first_tokens([Example(text, None, "here")], (" no", " yes"), Words(), SIDE)
    (row,) = found.rows
    assert len(row.tokens) == SIDE.seq_len and row.label_pos == (SIDE.seq_len - 1,) and row.tokens[0] == 1
    assert found.answers == (-1,)


def test_up_to_first_drops_the_rest_of_the_answer() -> None:
    encoded = encode_pair(EXAMPLES[0], " no way out", Words())
    assert len(encoded.row.targets) == 3
    short = up_to_first(encoded).row
    assert (short.tokens, short.label_pos) == (encoded.row.tokens[:4], (3,))
    assert short.targets == encoded.row.targets[:1]


def test_equal_first_tokens_are_refused() -> None:
    with pytest.raises(DataError, match=r"' no way' and ' no one' begin with the same token.*\(line 1\)"):
        first_tokens_of(EXAMPLES[0], (" no way", " no one"), Words())


def test_a_border_that_moves_is_refused() -> None:
    """Without a space before it, the answer melts into the last word."""
    with pytest.raises(DataError, match="the border between prompt and answer"):
        encode_first_tokens(EXAMPLES, ("no", " yes"), Words(), SIDE)


@pytest.mark.parametrize(
    ("items", "candidates", "message"),
    [
        (EXAMPLES, (" yes", " yes"), "2 or more answers"),
        ([Document("text", "line 1")], (" yes", " no"), "have no answers to choose from"),
        ([], (" yes", " no"), "there are no rows"),
        (EXAMPLES, (" yes", " no"), "the answer ' no way' is not one of the candidates"),
    ],
)
def test_what_cannot_be_chosen(items: list[Any], candidates: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        encode_first_tokens(items, candidates, Words(), SIDE)


def test_answers_that_differ_by_row_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{number}", "completion": f" {number}"} for number in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="has no answers that are the same for every row"):
        encode_dataset(load_dataset(path), Words(), SIDE)
