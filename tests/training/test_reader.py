"""A cache is read through as few tokens as a text needs, and answers end where they should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prgec.core.contract.names import EXTEND_CHUNK
from prgec.errors import ProgramError, UsageError
from prgec.runtime.training.reader import Answer, Reader
from prgec.runtime.training.sampling import Sampler, Sampling
from tests.tiny_program import MANIFEST

CONTEXT, EOS = 300, 0
TEXT = "one two. three"


class _Successor:
    """Returns the next number, modulo 50; records the tokens it reads, and checks that no earlier ones are missing."""

    manifest = replace(MANIFEST, context=CONTEXT)

    def __init__(self) -> None:
        # It is its own cache.
        self.cache = self
        self.calls: list[tuple[int, int]] = []
        self.held: list[int] = []
        self.cleared = 0

    def clear(self) -> None:
        self.cleared += 1

    def extend(self, tokens_T: np.ndarray, start: int) -> np.ndarray:
        assert start <= len(self.held) and 0 < len(tokens_T) <= EXTEND_CHUNK
        self.calls.append((start, len(tokens_T)))
        self.held[start:] = tokens_T.tolist()
        return _only((self.held[-1] + 1) % 50, 50)


def _only(token: int, vocab_size: int) -> np.ndarray:
    """Logits that leave no choice."""
    logits_V = np.zeros(vocab_size, dtype=np.float32)
    logits_V[token] = 1.0
    return logits_V


def _reader() -> tuple[Any, Reader]:
    program: Any = _Successor()
    return program, Reader(program)


def _decode(ids: Sequence[int]) -> str:
    return "".join(chr(i) for i in ids)


def _answer(ids: list[int], text: str, **options: Any) -> Answer:
    """An answer of a program that always returns `text`."""

    class _Says(_Successor):
        def extend(self, tokens_T: np.ndarray, start: int) -> np.ndarray:
            super().extend(tokens_T, start)
            place = len(self.held) - len(ids)
            return _only(ord(text[place]) if place < len(text) else EOS, 0x10000)

    program: Any = _Says()
    settings = {"ends": (EOS,), "max_tokens": 40, **options}
    return Answer(Reader(program), ids, Sampler(Sampling()), _decode, **settings)


def test_only_what_is_new_is_read() -> None:
    program, reader = _reader()
    reader.read([1, 2, 3])
    assert reader.read([1, 2, 3, 4]).argmax() == 5
    reader.read([1, 2, 9])
    reader.read([1, 2])
    assert program.calls == [(0, 3), (3, 1), (2, 1), (1, 1)]
    assert program.held[:2] == [1, 2]
    assert program.cleared == 1


def test_long_texts_are_read_in_parts() -> None:
    program, reader = _reader()
    reader.read(list(range(1, 2 * EXTEND_CHUNK + 4)))
    assert program.calls == [(0, EXTEND_CHUNK), (EXTEND_CHUNK, EXTEND_CHUNK), (2 * EXTEND_CHUNK, 3)]


def test_other_weights_read_again() -> None:
    program, reader = _reader()
    reader.read([1, 2, 3])
    reader.forget()
    reader.read([1, 2, 3])
    assert program.calls == [(0, 3), (0, 3)]
    assert program.cleared == 2


def test_what_is_no_number_is_not_kept() -> None:
    class _Spoilt(_Successor):
        def extend(self, tokens_T: np.ndarray, start: int) -> np.ndarray:
            return super().extend(tokens_T, start) * (np.nan if 13 in tokens_T else 1.0)

    program: Any = _Spoilt()
    reader = Reader(program)
    reader.read([1, 2])
    with pytest.raises(
        ProgramError, match="^the program computes values that are not finite: its trained weights are too large"
    ):
        reader.read([1, 2, 13])
    assert reader.read([1, 2]).argmax() == 3
    assert (program.calls[-1], program.cleared) == ((0, 2), 2)


def test_the_cache_is_full() -> None:
    program, reader = _reader()
    answer = Answer(reader, [7] * (CONTEXT - 2), Sampler(Sampling()), _decode, ends=(), max_tokens=40)
    assert "".join(answer) == _decode([8, 9, 10])
    assert answer.is_full
    assert sum(count for _, count in program.calls) == CONTEXT
    with pytest.raises(
        UsageError, match=f"^the text has {CONTEXT + 1} tokens, and the program's cache holds {CONTEXT}"
    ):
        reader.read([7] * (CONTEXT + 1))
    with pytest.raises(UsageError, match="^there is no text to continue$"):
        reader.read([])


def test_a_program_without_a_cache() -> None:
    program: Any = _Successor()
    program.manifest = MANIFEST
    with pytest.raises(UsageError, match="^the program has no cache to continue with"):
        Reader(program)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, TEXT),
        ({"max_tokens": 5}, "one t"),
        ({"stops": (".",)}, "one two"),
        ({"stops": ("o. t", "zzz")}, "one tw"),
        # Looks like a stop until it is none.
        ({"stops": ("two. thirty",)}, TEXT),
        ({"ends": (ord("w"),)}, "one t"),
    ],
)
def test_where_answers_end(options: dict[str, Any], expected: str) -> None:
    answer = _answer([1, 2], TEXT, **options)
    parts = list(answer)
    assert "".join(parts) == answer.text == expected
    assert not answer.is_full and all(parts)


def test_half_a_character_waits() -> None:
    answer = _answer([1], "a\ufffdb")
    assert list(answer) == ["a", "\ufffdb"]
