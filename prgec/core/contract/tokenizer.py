"""The tokenizer inside a program: packed at compile time with transformers, read back with `tokenizers` alone.

The packed form is an uncompressed zip with fixed time stamps, so equal tokenizers are equal bytes and a C++ runner
can read it without a decompressor. Members: `tokenizer.json` (Hugging Face fast format), `prgec_tokenizer.json`
(special ids, BOS behaviour, chat template) and, where the checkpoint has one, sentencepiece's `tokenizer.model`.
"""

from __future__ import annotations

import functools
import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from prgec.core.contract.chat import ASSISTANT, ChatTemplate, Written
from prgec.core.contract.packed_tokenizer import (
    SETTINGS_JSON,
    TOKENIZER_JSON,
    check_ids,
    parse_backend,
    parse_settings,
    unzip,
)
from prgec.core.contract.template import Span
from prgec.errors import DataError

if TYPE_CHECKING:
    import tokenizers


class ChatIds(NamedTuple):
    """A conversation as tokens.

    Attributes:
        ids: Up to the end of the last turn that is learned.
        is_said: Which of them are learned.
        num_messages: Turns that are in it, from the first one.
    """

    ids: list[int]
    is_said: list[bool]
    num_messages: int


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Text to ids and back, from a packed blob; equal to the checkpoint's own tokenizer.

    Attributes:
        bos_id: Token that starts a text, None if the vocabulary has none.
        eos_id: Token that ends a text, None if the vocabulary has none.
        pad_id: Token to pad with; EOS, else 0, where the checkpoint names none.
        add_bos: Whether `encode` puts BOS first.
        chat_template: Jinja template of the checkpoint, None if it has none.
        special_tokens: `bos_token` and the like, as chat templates read them.
        sha256: Hash of the packed blob, by which files of rows name their tokenizer.
        classes: Names of a classifier's answers, a single one for a score; none of a language model.
    """

    backend: tokenizers.Tokenizer
    bos_id: int | None
    eos_id: int | None
    pad_id: int
    add_bos: bool
    chat_template: str | None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    sha256: str = ""
    classes: tuple[str, ...] = ()

    @classmethod
    def unpack(cls, blob: bytes) -> Tokenizer:
        """Read a packed tokenizer, trusting nothing in it.

        Raises:
            ProgramError: If the blob is not one that `pack_tokenizer` writes.
        """
        members = unzip(blob)
        settings = parse_settings(members[SETTINGS_JSON])
        backend = parse_backend(members[TOKENIZER_JSON])
        check_ids(settings, backend.get_vocab_size(with_added_tokens=True))
        return cls(
            backend=backend,
            bos_id=settings["bos_id"],
            eos_id=settings["eos_id"],
            pad_id=settings["pad_id"],
            add_bos=settings["add_bos"],
            chat_template=settings["chat_template"],
            special_tokens=settings["special_tokens"],
            sha256=hashlib.sha256(blob).hexdigest(),
            classes=tuple(settings.get("classes", ())),
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text, with BOS and the like as the checkpoint adds them by default."""
        ids: list[int] = self._encoding(text, add_special_tokens).ids
        return ids

    def encode_spans(self, text: str) -> tuple[list[int], Sequence[Span]]:
        """Return the ids of a text and the characters [start, end) of each; [0, 0) of what the tokenizer adds."""
        encoding = self._encoding(text)
        return encoding.ids, encoding.offsets

    def encode_texts(self, texts: Sequence[str]) -> list[int]:
        """Return the ids of one text, or of two that belong together, with what the checkpoint puts around them."""
        first, *rest = texts
        ids: list[int] = self._encoding((first, rest[0]) if rest else first).ids
        return ids

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, only_last: bool = False
    ) -> list[ChatIds]:
        """Return a conversation as the chat template writes it: one row, or one for each learned turn.

        Args:
            messages: The turns.
            tools: JSON schemas of functions the assistant may call.
            only_last: Whether to learn the last turn alone.

        Raises:
            DataError: If the checkpoint has no chat template, or it refuses the conversation.
        """
        written = self._template().write(messages, tools, self._shared_length, only_last=only_last)
        return [self._chat_ids(each) for each in written]

    def encode_chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, thinks: bool = False
    ) -> list[int]:
        """Return the ids of a conversation up to where the assistant is to begin.

        Args:
            messages: The turns.
            tools: JSON schemas of functions the assistant may call.
            thinks: Whether a model that can reason first does so.

        Raises:
            DataError: If the checkpoint has no chat template, or it refuses the conversation.
        """
        return one_bos(
            self.encode(self._template().prompt(messages, tools, thinks=thinks), add_special_tokens=False), self.bos_id
        )

    @functools.cached_property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer: EOS, and the one with which the chat template ends the assistant's turns."""
        ends = set() if self.eos_id is None else {self.eos_id}
        if self.chat_template is not None:
            probe = [{"role": "user", "content": "a"}, {"role": ASSISTANT, "content": "b"}]
            try:
                last = self.encode_chat(probe)[0].ids[-1]
            except DataError:
                return frozenset(ends)
            special = self.backend.get_added_tokens_decoder().get(last)
            ends |= {last} if special is not None and special.special else set()
        return frozenset(ends)

    def _encoding(self, text: str | tuple[str, str], add_special_tokens: bool = True) -> Any:
        # Unlike `encode`, it leaves Python's lock to other threads.
        return self.backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def _chat_ids(self, written: Written) -> ChatIds:
        # The template writes special tokens itself.
        encoding = self._encoding(written.text, add_special_tokens=False)
        ids, is_said = self._as_prompted(written, encoding.ids, encoding.offsets)
        ids = one_bos(ids, self.bos_id)
        # An answer without an end would never stop.
        end = [self.eos_id] if self.eos_id is not None and not written.is_ended else []
        return ChatIds(ids + end, is_said[-len(ids) :] + [True] * len(end), written.num_messages)

    def _as_prompted(self, written: Written, ids: list[int], offsets: Sequence[Span]) -> tuple[list[int], list[bool]]:
        """Return the tokens, and which are learned, with those before an answer as a prompt that ends there has them.

        Byte-level tokenizers split white space by what follows it: two line breaks are one token at the end of a
        prompt, and may be two before a word. A model that learned to go on from two would be given one.
        """
        is_said, before = _within(offsets, written.spans), 0
        places = []
        for start, end in written.spans:
            place = bisect_left(offsets, (start, 0))
            if 0 < place < len(ids) and offsets[place - 1][1] == start == offsets[place][0]:
                places.append((before, place, start))
            before = bisect_left(offsets, (end, 0))
        for lowest, place, start in reversed(places):
            # Text after a token of its own does not depend on what is before that.
            own = next((n for n in range(place - 1, lowest - 1, -1) if ids[n] in self._added_ids), None)
            if own is not None or lowest == 0:
                own = own or 0
                prompted = self._prompt_ids(written.text[offsets[own][0] : start])
                ids[own:place], is_said[own:place] = prompted, [False] * len(prompted)
        return ids, is_said

    @functools.cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self.backend.get_added_tokens_decoder())

    @functools.cached_property
    def _prompt_ids(self) -> Callable[[str], list[int]]:
        # The end of a prompt, headers of the answer, is the same in all rows.
        kept = functools.lru_cache(maxsize=256)(lambda text: tuple(self._encoding(text, add_special_tokens=False).ids))
        return lambda text: list(kept(text))

    def _shared_length(self, prompt: str, text: str) -> int:
        """Return how many characters of a text are in the tokens that it begins with as a prompt does."""
        left, right = (self._encoding(each, add_special_tokens=False) for each in (prompt, text))
        shared = next((n for n, pair in enumerate(zip(left.ids, right.ids, strict=False)) if pair[0] != pair[1]), None)
        place = min(len(left.ids), len(right.ids)) if shared is None else shared
        return int(right.offsets[place][0]) if place < len(right.ids) else len(text)

    def _template(self) -> ChatTemplate:
        if self.chat_template is None:
            raise DataError(
                "the checkpoint has no chat template, so conversations cannot be written",
                hint="compile a chat model, or use prompt and completion",
            )
        return ChatTemplate(self.chat_template, self.special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of some ids."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text


def _within(offsets: Sequence[Span], spans: Sequence[Span]) -> list[bool]:
    """Return whether each token has characters in a span.

    Args:
        offsets: Characters [start, end) of each token, in the order of the text.
        spans: Characters [start, end) of each span.
    """
    is_within = [False] * len(offsets)
    for first, last in spans:
        # Tokens of one character begin at the same place, and a token may begin before its span.
        index = bisect_left(offsets, (first, 0))
        while index > 0 and offsets[index - 1][1] > first:
            index -= 1
        for place in range(index, bisect_left(offsets, (last, 0))):
            is_within[place] = offsets[place][1] > first
    return is_within


def one_bos(ids: list[int], bos_id: int | None) -> list[int]:
    """Return the ids of a text that writes BOS itself without the tokenizer's own."""
    return ids[1:] if bos_id is not None and ids[:2] == [bos_id, bos_id] else ids
