"""Formats that need no template of ours: prompt and completion, chat messages, plain text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prgec.contract.chat import ASSISTANT
from prgec.data.jsonl import Record, text_of
from prgec.data.task import ACCURACY, LOSS, Conversation, Document, Example, find
from prgec.errors import DataError


@dataclass(frozen=True)
class CompletionFormat:
    """Free prompt and completion, used exactly as written; the end of a completion is learned as EOS."""

    name: str = "completion"
    fields: tuple[str, ...] = ("prompt",)
    answer_field: str = "completion"
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    candidates: tuple[str, ...] = ()
    metric: str = ACCURACY

    def item(self, record: Record, *, labelled: bool) -> Example:
        """Return prompt and completion unchanged.

        Raises:
            DataError: If one of them is missing or no text, or the completion is empty.
        """
        prompt = record.text("prompt")
        if not labelled:
            return Example(prompt, None, record.where)
        completion = record.text("completion")
        if not completion:
            raise DataError('field "completion" is empty', where=record.where)
        return Example(prompt, completion, record.where, ends=True)

    def prompt_of(self, text: str) -> str:
        """Return the prompt for a text given on the command line."""
        return text


@dataclass(frozen=True)
class ChatFormat:
    """Conversations under the model's own chat template; the assistant's turns are what is learned."""

    name: str = "chat"
    fields: tuple[str, ...] = ("messages",)
    answer_field: str = ""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"messages": ("conversation",)})
    candidates: tuple[str, ...] = ()
    metric: str = LOSS

    def item(self, record: Record, *, labelled: bool) -> Conversation:
        """Return the turns.

        Raises:
            DataError: If a turn has no role or no content, or none is the assistant's.
        """
        messages = find(record, "messages", self.aliases)
        if not isinstance(messages, list) or not messages:
            raise DataError('field "messages" is not a list of turns', where=record.where)
        turns = tuple(_turn(turn, number, record) for number, turn in enumerate(messages, start=1))
        if labelled and all(turn["role"] != ASSISTANT for turn in turns):
            raise DataError("no turn is the assistant's: there is nothing to learn", where=record.where)
        return Conversation(turns, record.where)


@dataclass(frozen=True)
class TextFormat:
    """Plain text; every token but the first is a target."""

    name: str = "text"
    fields: tuple[str, ...] = ("text",)
    answer_field: str = ""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    candidates: tuple[str, ...] = ()
    metric: str = LOSS

    def item(self, record: Record, *, labelled: bool) -> Document:
        """Return the text.

        Raises:
            DataError: If it is missing, no text, or empty.
        """
        text = record.text("text")
        if not text.strip():
            raise DataError('field "text" is empty', where=record.where)
        return Document(text, record.where)


def _turn(turn: Any, number: int, record: Record) -> dict[str, Any]:
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
        raise DataError(f"turn {number} has no role", where=record.where)
    text_of(turn.get("content"), f"messages[{number}].content", record)
    return turn
