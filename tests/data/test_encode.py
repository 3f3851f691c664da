"""Rows predict exactly the completion, whatever is cut and wherever tokens merge."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import pytest

from prgec.core.contract.manifest import Manifest
from prgec.core.data.encode import Row, encode_items, encode_row, encode_rows
from prgec.core.data.task import Document, Example
from prgec.errors import DataError

BOS, EOS = 1, 2


class CharTokenizer:
    """One id per character, except that `merge` (a string) is a single token; a BOS first if requested."""

    def __init__(self, *, bos: bool = True, merge: str = "") -> None:
        self.bos_id = BOS if bos else None
        self.eos_id = EOS
        self._merge = merge

    classes: tuple[str, ...] = ()

    def encode_texts(self, texts: Sequence[str]) -> list[int]:
        raise NotImplementedError

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = [BOS] if self.bos_id is not None and add_special_tokens else []
        for index, piece in enumerate(text.split(self._merge) if self._merge else [text]):
            ids += [999] if index else []
            ids += [ord(char) for char in piece]
        return ids

    def encode_spans(self, text: str) -> tuple[list[int], Sequence[tuple[int, int]]]:
        ids, spans, place = self.encode(text), [], 0
        for token in ids:
            length = 0 if token == BOS else len(self._merge) if token == 999 else 1
            spans.append((place, place + length) if length else (0, 0))
            place += length
        return ids, spans


def _manifest(seq_len: int = 16, num_labels: int = 2) -> Manifest:
    return Manifest(
        model="m",
        architecture="A",
        backend="portable",
        q=1,
        batch_size=1,
        seq_len=seq_len,
        dynamic_seq_len=True,
        num_labels=num_labels,
        vocab_size=2000,
        rank=1,
        alpha=1.0,
        a_seed=0,
        state="seeded",
        quantize="none",
        sites=(),
        pipeline="",
        base_sha256="",
    )


def _row(prompt: str, completion: str, *, tokenizer: CharTokenizer | None = None, **shape: int) -> Row:
    example = Example(prompt, completion, "rows.jsonl, line 7")
    return encode_row(example, completion, tokenizer or CharTokenizer(), _manifest(**shape))


def _predicts(row: Row) -> list[tuple[int, int]]:
    """Return (token read, token to predict) at each label position."""
    return [(row.tokens[p], t) for p, t in zip(row.label_pos, row.targets, strict=True)]


def test_each_target_is_predicted_one_position_before_it() -> None:
    row = _row("ab", "cd")
    assert row.tokens == (BOS, ord("a"), ord("b"), ord("c"))
    assert _predicts(row) == [(ord("b"), ord("c")), (ord("c"), ord("d"))]
    assert not row.truncated


def test_token_across_the_border_belongs_to_the_completion() -> None:
    row = _row("ab", "cd", tokenizer=CharTokenizer(merge="bc"))
    assert _predicts(row) == [(ord("a"), 999), (999, ord("d"))]


def test_eos_is_the_last_target_where_an_example_ends() -> None:
    example = Example("ab", "cd", "w", ends=True)
    row = encode_row(example, "cd", CharTokenizer(), _manifest(num_labels=3))
    assert _predicts(row) == [(ord("b"), ord("c")), (ord("c"), ord("d")), (ord("d"), EOS)]
    # A completion that writes EOS itself has one.
    written = encode_row(example, "c" + chr(EOS), CharTokenizer(), _manifest())
    assert written.targets == (ord("c"), EOS)


def test_long_prompt_is_cut_on_the_left_behind_bos() -> None:
    row = _row("abcdefgh", "xy", seq_len=5)
    assert row.tokens == (BOS, ord("f"), ord("g"), ord("h"), ord("x"))
    assert _predicts(row) == [(ord("h"), ord("x")), (ord("x"), ord("y"))]
    assert row.truncated


def test_long_prompt_without_bos() -> None:
    row = _row("abcdefgh", "xy", seq_len=3, tokenizer=CharTokenizer(bos=False))
    assert row.tokens == (ord("g"), ord("h"), ord("x"))
    assert _predicts(row) == [(ord("h"), ord("x")), (ord("x"), ord("y"))]


@pytest.mark.parametrize("length", range(1, 12))
def test_every_length_keeps_the_whole_completion(length: int) -> None:
    row = _row("abcdefghijkl"[:length], "xy", seq_len=4)
    assert len(row.tokens) <= 4
    assert row.targets == (ord("x"), ord("y"))
    assert row.tokens[row.label_pos[1]] == ord("x")
    assert row.truncated == (length + 2 > 4)


def test_completion_as_long_as_the_program_is_read_from_bos() -> None:
    row = _row("abc", "xy", seq_len=2)
    assert row.tokens == (BOS, ord("x"))
    assert _predicts(row) == [(BOS, ord("x")), (ord("x"), ord("y"))]


@pytest.mark.parametrize(
    ("prompt", "completion", "bos", "shape", "message"),
    [
        ("ab", "cde", True, {}, r"K = 2 label positions; the longest has 3 \(rows.jsonl, line 7\)"),
        ("ab", "cde", True, {"num_labels": 8, "seq_len": 2}, "T = 2 tokens; the longest has 3"),
        ("ab", "", True, {}, "completion has no tokens"),
        ("", "c", False, {}, "the prompt is empty and the tokenizer has no BOS"),
    ],
)
def test_rows_that_cannot_be_encoded(
    prompt: str, completion: str, bos: bool, shape: dict[str, int], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        _row(prompt, completion, tokenizer=CharTokenizer(bos=bos), **shape)


def test_empty_prompt_is_predicted_from_bos() -> None:
    assert _predicts(_row("", "c")) == [(BOS, ord("c"))]


def test_one_warning_counts_the_cut_rows(caplog: pytest.LogCaptureFixture) -> None:
    pairs = [(Example("a" * n, "x", "w"), "x") for n in (2, 20, 30)]
    with caplog.at_level(logging.WARNING, logger="prgec"):
        rows = encode_rows(pairs, CharTokenizer(), _manifest(seq_len=8))
    assert [row.truncated for row in rows] == [False, True, True]
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 3 rows are longer than T = 8, the longest has 31 tokens: cut from the left of the prompt. The first is "
        "w, which lost 13 of its 21 tokens"
    ]


def test_rows_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        _row("ab", "c").tokens = ()  # type: ignore[misc]


@pytest.mark.parametrize(("seq_len", "num_labels"), [(8, 7), (8, 3), (8, 8), (4, 1), (64, 63)])
def test_every_token_of_a_document_is_predicted_once(seq_len: int, num_labels: int) -> None:
    text = "".join(chr(97 + i % 26) + chr(65 + i // 26) for i in range(20))
    ids = CharTokenizer().encode(text)
    rows = encode_items([Document(text, "w")], CharTokenizer(), _manifest(seq_len=seq_len, num_labels=num_labels))
    assert [target for row in rows for target in row.targets] == ids[1:]
    for row in rows:
        assert len(row.tokens) <= seq_len and len(row.targets) <= num_labels
        # The tokens read before a target are those before it in the text.
        start = next(i for i in range(len(ids)) if tuple(ids[i : i + len(row.tokens)]) == row.tokens)
        assert [ids[start + p + 1] for p in row.label_pos] == list(row.targets)
        assert row.label_pos[-1] == len(row.tokens) - 1
    assert all(len(row.tokens) == seq_len for row in rows[(seq_len // num_labels) :])


def test_tokens_beyond_the_vocabulary() -> None:
    with pytest.raises(DataError, match=r"token 9731 lies beyond the model's vocabulary of 2000 \(rows"):
        _row("\u2603", "x")
