"""Formats that need no template of ours: prompt and completion, chat messages, plain text, and texts with labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prgec.core.contract.chat import ASSISTANT, WEIGHT
from prgec.core.data.jsonl import Record, text_of
from prgec.core.data.task import ACCURACY, LOSS, Conversation, Document, Example, find
from prgec.core.data.turns import system_turn, tools_of, turns_of
from prgec.errors import DataError

# Answers of an evaluation are tried one by one.
MOST_LABELS, MOST_COMPLETIONS = 1000, 16


@dataclass(frozen=True, kw_only=True)
class CompletionFormat:
    """Free prompt and completion, used exactly as written; the end of a completion is learned as EOS.

    A prompt that is a list of turns makes a conversation, of which the completion alone is learned.
    """

    name: str = "completion"
    fields: tuple[str, ...] = ("prompt",)
    answer_field: str = "completion"
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"completion": ("response",)})
    candidates: tuple[str, ...] = ()
    metric: str = ACCURACY
    most_answers: int = MOST_COMPLETIONS
    has_labels: bool = False

    def item(self, record: Record, *, labelled: bool) -> Example | Conversation:
        """Return prompt and completion unchanged, or as turns.

        Raises:
            DataError: If one of them is missing or no text, or the completion is empty.
        """
        prompt = find(record, "prompt", self.aliases)
        if isinstance(prompt, list):
            return self._conversation(prompt, record, labelled=labelled)
        prompt = text_of(prompt, "prompt", record)
        if not labelled:
            return Example(prompt, None, record.where)
        completion = text_of(find(record, "completion", self.aliases), "completion", record)
        if not completion:
            raise DataError('field "completion" is empty', where=record.where)
        return Example(prompt, completion, record.where, ends=True)

    def prompt_of(self, text: str) -> str:
        """Return the prompt for a text given on the command line."""
        return text

    def _conversation(self, prompt: list[Any], record: Record, *, labelled: bool) -> Conversation:
        asked = tuple(
            {**turn, WEIGHT: 0} if turn["role"] == ASSISTANT else turn for turn in turns_of(prompt, "prompt", record)
        )
        if not labelled:
            return Conversation(asked, record.where, tools_of(record))
        answer = find(record, "completion", self.aliases)
        if not isinstance(answer, list):
            answer = [{"role": ASSISTANT, "content": answer}]
        return Conversation((*asked, *turns_of(answer, "completion", record)), record.where, tools_of(record))


@dataclass(frozen=True, kw_only=True)
class ChatFormat:
    """Conversations under the model's own chat template; the assistant's turns are what is learned."""

    name: str = "chat"
    fields: tuple[str, ...] = ("messages",)
    answer_field: str = ""
    aliases: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"messages": ("conversations", "conversation")}
    )
    candidates: tuple[str, ...] = ()
    metric: str = LOSS
    most_answers: int = 0
    has_labels: bool = False

    def item(self, record: Record, *, labelled: bool) -> Conversation:
        """Return the turns.

        Raises:
            DataError: If a turn has no role or no content, or none is the assistant's.
        """
        turns = turns_of(find(record, "messages", self.aliases), "messages", record)
        if labelled and all(turn["role"] != ASSISTANT for turn in turns):
            raise DataError("no turn is the assistant's: there is nothing to learn", where=record.where)
        return Conversation((*system_turn(record), *turns), record.where, tools_of(record))


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """Plain text; every token but the first is a target."""

    name: str = "text"
    fields: tuple[str, ...] = ("text",)
    answer_field: str = ""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    candidates: tuple[str, ...] = ()
    metric: str = LOSS
    most_answers: int = 0
    has_labels: bool = False

    def item(self, record: Record, *, labelled: bool) -> Document:
        """Return the text.

        Raises:
            DataError: If it is missing, no text, or empty.
        """
        text = record.text("text")
        if not text.strip():
            raise DataError('field "text" is empty', where=record.where)
        return Document(text, record.where)


@dataclass(frozen=True, kw_only=True)
class LabelFormat:
    """A text and a label of any kind; the labels of the data are the answers to choose from."""

    name: str = "label"
    fields: tuple[str, ...] = ("text",)
    answer_field: str = "label"
    # Some files have a number and, beside it, what it means.
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    candidates: tuple[str, ...] = ()
    metric: str = ACCURACY
    most_answers: int = MOST_LABELS
    has_labels: bool = True

    def item(self, record: Record, *, labelled: bool) -> Example:
        """Return the text with its label as the completion.

        Raises:
            DataError: If one of them is missing, or the label is neither a text nor a number.
        """
        text = text_of(find(record, "text", self.aliases), "text", record).strip()
        example = Example(self.prompt_of(text), None, record.where, texts=(text,))
        if not labelled:
            return example
        name = "label_text" if record.fields.get("label_text") else "label"
        label = _label_text(find(record, name, self.aliases), name, record)
        return Example(example.prompt, f" {label}", record.where, texts=(text,))

    def prompt_of(self, text: str) -> str:
        """Return the prompt for a text given on the command line."""
        return f"{text.strip()}\nLabel:"


def _label_text(label: Any, name: str, record: Record) -> str:
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    text = text_of(str(label) if isinstance(label, int | float) else label, name, record).strip()
    if not text:
        raise DataError(f'field "{name}" is empty', where=record.where)
    return text
