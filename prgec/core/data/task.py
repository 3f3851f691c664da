"""Tasks: fields, template, candidates and metric, and the items that records become.

A task with fixed answers, or with answers in its own fields, is a row of data (`TemplateTask`); the formats that need
none (`completion`, `chat`, `text`) are in `formats.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

from prgec.core.data.jsonl import Record, text_of
from prgec.errors import DataError

Values: TypeAlias = dict[str, str]
_PLACEHOLDER = re.compile(r"\{(\w+)\}")

ACCURACY, SPAN_F1, LOSS = "accuracy", "f1", "loss"
MATTHEWS, CORRELATION, ROUGE = "matthews", "correlation", "rouge"
# Metrics of answers that are generated and compared as text.
OF_TEXT = (SPAN_F1, ROUGE)
METRICS = (ACCURACY, *OF_TEXT, LOSS)


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled or unlabelled item, as text.

    Attributes:
        prompt: Text the model is given.
        completion: The right continuation, leading space included; None when the label is not known.
        where: `file, line n`, for messages.
        candidates: Continuations to choose from where the record brings its own.
        references: Every answer that counts as right, where answers are compared as text.
        texts: The fields themselves, without a template around them: what an encoder reads.
        classes: Continuations in label order, by which an encoder's classes are called.
        ends: Whether the end of the completion is learned too, as the tokenizer's EOS.
        weight: Weight of its labels in the differentiated loss.
    """

    prompt: str
    completion: str | None
    where: str
    candidates: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    texts: tuple[str, ...] = field(default=(), compare=False)
    classes: tuple[str, ...] = field(default=(), compare=False)
    ends: bool = False
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat; what the assistant says is what is learned.

    Attributes:
        messages: Turns with `role` and `content`, and whatever else the chat template reads.
        where: `file, line n`, for messages.
        tools: JSON schemas of the functions that the assistant may call.
        plain: The same for a model without a chat template; None where there is no such form.
        weight: Weight of its labels in the differentiated loss.
    """

    messages: tuple[dict[str, Any], ...]
    where: str
    tools: tuple[dict[str, Any], ...] = ()
    plain: Example | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Document:
    """Plain text of which every token is predicted.

    Attributes:
        text: The text.
        where: `file, line n`, for messages.
        weight: Weight of its labels in the differentiated loss.
    """

    text: str
    where: str
    weight: float = 1.0


Item: TypeAlias = Example | Conversation | Document


@runtime_checkable
class Task(Protocol):
    """The interface of a task for the rest of the program."""

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields every record must have, without the answer."""

    @property
    def answer_field(self) -> str:
        """Field that holds the label or the completion; empty where the record as a whole is what is learned."""

    @property
    def aliases(self) -> Mapping[str, tuple[str, ...]]:
        """Other published names of a field; `a.b` reaches into an object."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """Choices that are the same for every record, in label order; empty when records or data define them."""

    @property
    def metric(self) -> str:
        """The metric of evaluations besides the loss: one of `METRICS`."""

    @property
    def most_answers(self) -> int:
        """Most different answers of a file that make a choice of them; 0 where data never do."""

    @property
    def has_labels(self) -> bool:
        """Whether answers are labels: a choice even where none repeats, and without an end."""

    def item(self, record: Record, *, labelled: bool) -> Item:
        """Return what a record becomes."""


@dataclass(frozen=True, kw_only=True)
class TemplateTask:
    """A task in the form of a cloze or a question.

    `{name}` in a template stands for a field, or for a value that `derive` adds. Values are put in once: braces in
    them mean nothing.

    Attributes:
        name: Name on the command line.
        fields: Fields the templates read.
        answer_field: Field with the label or the answer.
        template: Prompt.
        choices: Template of each continuation, in label order; empty when answers are free text.
        labels: Accepted spellings of a label (lower case) and the choice each one means.
        answer: Template of the continuation where there are no choices; it reads `{answer}`.
        metric: Metric of evaluations.
        aliases: Other published names of a field.
        derive: Returns values with more names, or with changed text.
        verbatim: Whether values keep white space at their ends.
        most_answers: Unused: choices are those of the task.
        has_labels: Unused.
        is_named: Whether another task has the same fields: it needs its name, or that of a folder or file.
    """

    name: str
    fields: tuple[str, ...]
    answer_field: str
    template: str
    choices: tuple[str, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    answer: str = ""
    metric: str = ACCURACY
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    derive: Callable[[Values, Record], Values] = lambda values, record: values
    verbatim: bool = False
    is_named: bool = False
    most_answers: int = 0
    has_labels: bool = False

    @property
    def candidates(self) -> tuple[str, ...]:
        """Choices that read no field of the record."""
        return () if any(map(_PLACEHOLDER.search, self.choices)) else self.choices

    def item(self, record: Record, *, labelled: bool) -> Example:
        """Return the prompt of a record with its right answer.

        Raises:
            DataError: If a field is missing or no text, or the label is not one of the task's.
        """
        values = self._values(record)
        prompt = fill(self.template, values)
        choices = tuple(fill(choice, values) for choice in self.choices)
        own = choices if choices != self.candidates else ()
        example = Example(
            prompt, None, record.where, own, texts=tuple(values[name] for name in self.fields), classes=self.candidates
        )
        if not labelled:
            return example
        if self.choices:
            return replace(example, completion=choices[self._label(record)])
        references = answers_of(find(record, self.answer_field, self.aliases), self.answer_field, record)
        completion = fill(self.answer, {**values, "answer": references[0]})
        return replace(example, completion=completion, references=references)

    def prompt_of(self, text: str) -> str:
        """Return the prompt for a text given on the command line; for tasks of one field."""
        return fill(self.template, {self.fields[0]: text if self.verbatim else text.strip()})

    def _values(self, record: Record) -> Values:
        values = {name: text_of(find(record, name, self.aliases), name, record) for name in self.fields}
        if not self.verbatim:
            values = {name: text.strip() for name, text in values.items()}
        return self.derive(values, record)

    def _label(self, record: Record) -> int:
        label = find(record, self.answer_field, self.aliases)
        # bool is an int and "True" would be found nowhere; 1.0 is how some exporters write 1.
        key = str(int(label)) if isinstance(label, float) and label.is_integer() else str(label).strip().lower()
        if key not in self.labels:
            known = ", ".join(sorted(self.labels))
            raise DataError(f"unknown label {label!r} for task {self.name}", where=record.where, hint=f"known: {known}")
        return self.labels[key]


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace every `{name}` whose name is known."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)


def placeholders(template: str) -> tuple[str, ...]:
    """Return the names a template reads, each once, in order."""
    return tuple(dict.fromkeys(_PLACEHOLDER.findall(template)))


def spellings(name: str, aliases: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names a field is published under."""
    return (name, *aliases.get(name, ()))


def has(record: Record, name: str, aliases: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether a record has a field under any of its names."""
    return any(reach(record.fields, path) is not None for path in spellings(name, aliases))


def find(record: Record, name: str, aliases: Mapping[str, tuple[str, ...]]) -> Any:
    """Return the value of a field under any of its names.

    Raises:
        DataError: If the record has none of them.
    """
    for path in spellings(name, aliases):
        value = reach(record.fields, path)
        if value is not None:
            return value[0]
    found = ", ".join(sorted(record.fields)) or "none"
    raise DataError(f'missing field "{name}"; found {found}', where=record.where)


def reach(fields: Mapping[str, Any], path: str) -> tuple[Any] | None:
    """Return the value at `a.b` in a tuple of one, so that null differs from absent; None if there is none."""
    if path in fields:
        return (fields[path],)
    value: Any = fields
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return (value,)


def answers_of(value: Any, name: str, record: Record) -> tuple[str, ...]:
    """Return the right answers: one text, a list of texts, SQuAD's list of objects, or its columns in `datasets`.

    Raises:
        DataError: If there is none.
    """
    if isinstance(value, dict):
        value = value.get("text")
    values = value if isinstance(value, list) else [value]
    values = [each.get("text") if isinstance(each, dict) else each for each in values]
    values = [str(each) if type(each) in (int, float) else each for each in values]
    answers = tuple(dict.fromkeys(text_of(each, name, record) for each in values))
    if not answers or not answers[0].strip():
        raise DataError(f'field "{name}" holds no answer', where=record.where)
    return answers


class OfOneText(Protocol):
    """A task that makes a prompt of a single text."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """Choices that are the same for every record, in label order."""

    def prompt_of(self, text: str) -> str:
        """Return the prompt."""


def example_of(task: OfOneText, text: str, where: str) -> Example:
    """Return an unlabelled example of a text that comes alone, as a record of it would be read.

    Args:
        task: Its task.
        text: The text.
        where: Its place, for messages.
    """
    return Example(task.prompt_of(text), None, where, texts=(text,), classes=task.candidates)
