"""Conversations as a checkpoint's own chat template writes them, and which characters the assistant says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from prgec.core.contract.template import GENERATION_TAG, REASONING_FIELDS, Message, Span, render
from prgec.errors import DataError

ASSISTANT = "assistant"
# Key of an assistant's turn; with 0 it is read and not learned.
WEIGHT = "weight"
_READS_TOOLS = re.compile(r"\b(?:xml_)?tools\b")
_THOUGHT = re.compile(r"<think>(.*?)</think>", re.S)

# (prompt, text) -> characters of the text that are in the tokens both begin with.
SharedLength: TypeAlias = Callable[[str, str], int]


@dataclass(frozen=True)
class Written:
    """A conversation as text.

    Attributes:
        text: Up to the end of the last turn that is learned.
        spans: Characters that are learned: [start, end) of each turn.
        num_messages: Turns that are in the text, from the first one.
        is_ended: Whether the template writes something after the content of the last turn, by which it ends.
    """

    text: str
    spans: tuple[Span, ...]
    num_messages: int
    is_ended: bool


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template with what it reads besides the turns.

    Attributes:
        source: Jinja template.
        special_tokens: `bos_token` and the like, as templates read them.
    """

    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Message] = (), *, thinks: bool = False) -> str:
        """Return a conversation up to where the assistant is to begin.

        Args:
            messages: The turns.
            tools: JSON schemas of functions the assistant may call.
            thinks: Whether a model that can reason first does so.

        Raises:
            DataError: If the template refuses the conversation, or writes no tools.
        """
        return self._render(messages, tools, thinks=thinks, asks=True)[0]

    def write(
        self, messages: Sequence[Message], tools: Sequence[Message], shared: SharedLength, *, only_last: bool = False
    ) -> list[Written]:
        """Return a conversation as one text, or a text for each learned turn where it must be several.

        A turn begins after what the template itself would write to ask for it, headers and empty thoughts included,
        and ends with its end-of-turn token. A template that marks what is generated (`{% generation %}`) says where a
        turn ends. One that writes earlier turns differently once later ones follow gets a text for each turn.

        Args:
            messages: The turns; an assistant's with a `weight` of 0 is not learned.
            tools: JSON schemas of functions the assistant may call.
            shared: Compares texts by tokens, for templates that ask otherwise than they write.
            only_last: Whether to learn the last turn alone.

        Raises:
            DataError: If the template refuses the conversation, or writes no tools.
        """
        learned = [index for index, each in enumerate(messages) if is_learned(each)][-1 if only_last else 0 :]
        if not learned:
            return []
        turns = [each for index in learned if (each := self._turn(messages, tools, index, shared)).spans]
        if not turns:
            return []
        whole = turns[-1]
        if not all(whole.text.startswith(turn.text) for turn in turns):
            return turns
        return [
            Written(
                whole.text, tuple(span for turn in turns for span in turn.spans), whole.num_messages, whole.is_ended
            )
        ]

    def _turn(self, messages: Sequence[Message], tools: Sequence[Message], index: int, shared: SharedLength) -> Written:
        """Return the conversation up to the end of one turn, which alone is learned."""
        turn, thinks = messages[index], has_thought(messages[index])
        is_marked = GENERATION_TAG.search(self.source) is not None
        text, marks = self._render(messages[: index + 1], tools, thinks=thinks, wants_marks=is_marked)
        _check_written(turn, text)
        end = self._end(text[: marks[-1][1]] if marks else text, turn)
        text = text[:end]
        try:
            prompt = self.prompt(messages[:index], tools, thinks=thinks)
        except DataError:
            # Some templates refuse to ask before the first turn.
            if index > 0:
                raise
            prompt = ""
        start = len(prompt) if text.startswith(prompt) else shared(prompt, text)
        if start < len(prompt) and not marks and (moved := _after_prompt(prompt, text, start, messages[index - 1])):
            text, start, end = moved, len(prompt), len(moved)
        marks = marks if is_marked else [(start, end)]
        spans = tuple((max(start, first), min(last, end)) for first, last in marks if last > start)
        return Written(text, spans, index + 1, _ends_itself(text, turn))

    def _end(self, text: str, turn: Message) -> int:
        """Return where a turn ends: before white space, and before EOS where that ends the text and not the turn."""
        text = text.rstrip()
        eos = self.special_tokens.get("eos_token", "")
        content = turn.get("content")
        if eos and text.endswith(eos) and isinstance(content, str):
            before = text.removesuffix(eos)
            if before != before.rstrip() and not before.rstrip().endswith(content.strip()):
                return len(before.rstrip())
        return len(text)

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message],
        *,
        thinks: bool,
        asks: bool = False,
        wants_marks: bool = False,
    ) -> tuple[str, list[Span]]:
        if tools and not _READS_TOOLS.search(self.source):
            raise DataError(
                "the chat template writes no tools, so the model would not see them",
                hint='leave the field "tools" out, or take a model that knows tools',
            )
        schemas = [dict(tool) for tool in tools] or None
        try:
            return render(
                self.source,
                messages,
                wants_marks=wants_marks,
                tools=schemas,
                documents=None,
                add_generation_prompt=asks,
                # Names that templates of different families ask for.
                enable_thinking=thinks,
                thinking=thinks,
                xml_tools=schemas,
                **self.special_tokens,
            )
        except Exception as error:  # whatever a template raises
            raise DataError(f"the chat template refuses the conversation: {error}") from error


def is_learned(message: Message) -> bool:
    """Return whether a turn is the assistant's, and not read only."""
    return bool(message["role"] == ASSISTANT and message.get(WEIGHT, 1) != 0)


def _ends_itself(text: str, turn: Message) -> bool:
    content = turn.get("content")
    return not (isinstance(content, str) and content.strip() and text.endswith(content.strip()))


def _after_prompt(prompt: str, text: str, start: int, asked: Message) -> str | None:
    """Return the prompt with the answer after it, where a template writes the question elsewhere once it is answered.

    Mistral's writes the system's turn before the last question, and leaves it out when an answer follows.

    Args:
        prompt: Text before the answer, as the template writes it.
        text: Question and answer.
        start: Where the two begin to differ.
        asked: The turn before the answer.
    """
    content = asked.get("content")
    question = content.strip() if isinstance(content, str) else ""
    in_text, in_prompt = text.find(question, start), prompt.rfind(question)
    rest = prompt[in_prompt:]
    if not question or in_text < 0 or in_prompt < 0 or not text.startswith(rest, in_text):
        return None
    return prompt + text[in_text + len(rest) :]


def _check_written(turn: Message, text: str) -> None:
    """Refuse a turn whose thoughts or calls of functions the template leaves out."""
    for call in turn.get("tool_calls") or ():
        if str(call.get("function", call).get("name")) not in text:
            raise DataError(
                "the chat template writes no calls of functions, so the model would not learn them",
                hint="put the call into the content as the model writes it",
            )
    for name in REASONING_FIELDS:
        thought = turn.get(name)
        if isinstance(thought, str) and thought.strip() not in text:
            raise DataError(
                f'the chat template does not write the field "{name}", so the model would not learn it',
                hint="leave the field out, or put the thoughts into the content as the model writes them",
            )


def has_thought(message: Message) -> bool:
    """Return whether a turn says what the model thinks before it answers."""
    if any(message.get(name) for name in REASONING_FIELDS):
        return True
    content = message.get("content")
    return isinstance(content, str) and any(thought.strip() for thought in _THOUGHT.findall(content))
