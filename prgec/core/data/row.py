"""Rows of token ids, before and after they are cut to a program, and what makes them.

Letters: T tokens, K label positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prgec.core.contract.template import Span
from prgec.core.contract.tokenizer import ChatIds


class Encoder(Protocol):
    """The part of a tokenizer that encoding needs."""

    @property
    def bos_id(self) -> int | None:
        """Id of the token every text starts with, or None."""

    @property
    def eos_id(self) -> int | None:
        """Id of the token that ends a text, or None."""

    @property
    def chat_template(self) -> str | None:
        """How conversations are written, or None."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of a classifier's answers; none of a language model, whose answers are tokens."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""

    def encode_spans(self, text: str) -> tuple[list[int], Sequence[Span]]:
        """Return the ids of a text and the characters [start, end) of each; [0, 0) of what the tokenizer adds."""

    def encode_texts(self, texts: Sequence[str]) -> list[int]:
        """Return the ids of one text or two, with what belongs around them."""

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, only_last: bool = False
    ) -> list[ChatIds]:
        """Return the ids of a conversation and which of them are learned, as one row or as one for each turn."""

    def encode_chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, thinks: bool = False
    ) -> list[int]:
        """Return the ids of a conversation up to where the assistant is to begin."""


class Sizes(Protocol):
    """The part of a program's manifest that rows are cut to."""

    @property
    def seq_len(self) -> int:
        """T, the most tokens."""

    @property
    def num_labels(self) -> int:
        """K, the most label positions."""

    @property
    def vocab_size(self) -> int:
        """Every token is smaller."""


@dataclass(frozen=True)
class RowSizes:
    """Sizes of a program that is not compiled yet."""

    seq_len: int
    num_labels: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Row:
    """One unpadded input row.

    Attributes:
        tokens: Ids the model reads; at most T.
        label_pos: Position in `tokens` whose logits predict each target; at most K.
        targets: Id to predict at each label position.
        truncated: Whether the prompt lost tokens on its left.
        weights: Weight of each label in the differentiated loss; empty where all are 1.
    """

    tokens: tuple[int, ...]
    label_pos: tuple[int, ...]
    targets: tuple[int, ...]
    truncated: bool = False
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Shortened:
    """A conversation after it lost turns.

    Attributes:
        row: The rest of the row; it may still be too long where the last turns alone are.
        lost: The lost part, for people.
    """

    row: Row
    lost: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A row before it is cut to a program.

    Attributes:
        row: All of it, however long.
        where: `file, line n`, for messages.
        has_bos: Whether the first token must survive a cut.
        is_text: Whether it may become several rows.
        is_classified: Whether it is read whole, by a classifier: it is cut at its end, and the last token stays.
        weight: Weight of its labels in the differentiated loss.
        shorter: Makes a conversation again with fewer turns, to have at most as many tokens as given.
    """

    row: Row
    where: str
    has_bos: bool
    is_text: bool = False
    is_classified: bool = False
    weight: float = 1.0
    shorter: Callable[[int], Shortened] | None = None


def answer_starts(row: Row) -> list[int]:
    """Return the indices in `label_pos` where an answer begins: of a conversation there may be several."""
    places = row.label_pos
    return [n for n, place in enumerate(places) if n == 0 or place != places[n - 1] + 1]
