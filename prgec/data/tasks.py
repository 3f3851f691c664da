"""The table of tasks: how the fields of a record become a prompt, the right completion, and the choices.

A task with fixed answers is a row of data (`ClassificationTask`); free text is `CompletionTask`. To add a
classification task add a row to `TASKS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prgec.data.jsonl import Record, read_jsonl
from prgec.errors import DataError, UsageError

AUTO_TASK = "auto"
MAX_DERIVED_CANDIDATES = 16


@dataclass(frozen=True)
class Example:
    """One labelled or unlabelled item, as text.

    Attributes:
        prompt: Text the model is given.
        completion: The right continuation, leading space included; None when the label is not known.
        where: `file, line n`, for messages.
    """

    prompt: str
    completion: str | None
    where: str


class Task(Protocol):
    """What the driver needs to know of a task."""

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def prompt_field(self) -> str:
        """Field that must be present in every record."""

    @property
    def answer_field(self) -> str:
        """Field that holds the label or the completion."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """Fixed choices in label order; empty when the data define them."""

    def prompt(self, text: str) -> str:
        """Return the prompt for one text."""

    def completion(self, record: Record) -> str:
        """Return the right continuation of one record."""


@dataclass(frozen=True)
class ClassificationTask:
    """A text and a label out of a fixed set, asked as a cloze.

    Attributes:
        name: Name on the command line.
        prompt_field: Field with the text.
        answer_field: Field with the label.
        template: Prompt; `{text}` stands for the text without surrounding white space.
        candidates: Continuation for each class, in class order.
        labels: Accepted spellings of a label (lower case) and the class each one means.
    """

    name: str
    prompt_field: str
    answer_field: str
    template: str
    candidates: tuple[str, ...]
    labels: dict[str, int]

    def prompt(self, text: str) -> str:
        """Return the cloze prompt for one text."""
        return self.template.replace("{text}", text.strip())

    def completion(self, record: Record) -> str:
        """Return the continuation of the record's label.

        Raises:
            DataError: If the label is missing or not one of the task's.
        """
        if self.answer_field not in record.fields:
            raise DataError(f'missing field "{self.answer_field}"', where=record.where)
        label = record.fields[self.answer_field]
        # bool is an int and "True" would be found nowhere; 1.0 is how some exporters write 1.
        key = str(int(label)) if isinstance(label, float) and label.is_integer() else str(label).strip().lower()
        if key not in self.labels:
            known = ", ".join(sorted(self.labels))
            raise DataError(f"unknown label {label!r} for task {self.name}", where=record.where, hint=f"known: {known}")
        return self.candidates[self.labels[key]]


@dataclass(frozen=True)
class CompletionTask:
    """Free prompt and completion, used exactly as written."""

    name: str = "completion"
    prompt_field: str = "prompt"
    answer_field: str = "completion"
    candidates: tuple[str, ...] = ()

    def prompt(self, text: str) -> str:
        """Return the prompt unchanged."""
        return text

    def completion(self, record: Record) -> str:
        """Return the completion unchanged.

        Raises:
            DataError: If the completion is missing or empty.
        """
        completion = record.text(self.answer_field)
        if not completion:
            raise DataError(f'field "{self.answer_field}" is empty', where=record.where)
        return completion


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        ClassificationTask(
            name="sst2",
            prompt_field="sentence",
            answer_field="label",
            template="{text} It was",
            candidates=(" terrible", " great"),
            labels={"0": 0, "1": 1, "negative": 0, "positive": 1, "terrible": 0, "great": 1},
        ),
        CompletionTask(),
    )
}


@dataclass(frozen=True)
class Dataset:
    """A data file read under one task.

    Attributes:
        task: Row of the task table.
        path: File the examples came from.
        examples: Items in file order.
    """

    task: Task
    path: Path
    examples: tuple[Example, ...]

    def candidates(self) -> tuple[str, ...]:
        """Return the choices an answer is picked from; empty when the task is open-ended.

        A free-text task becomes a choice when its data hold 2 to 16 distinct completions.
        """
        if self.task.candidates:
            return self.task.candidates
        distinct = sorted({example.completion for example in self.examples if example.completion is not None})
        return tuple(distinct) if 2 <= len(distinct) <= MAX_DERIVED_CANDIDATES else ()


def load_dataset(path: Path, task_name: str = AUTO_TASK, *, labelled: bool = True) -> Dataset:
    """Read a jsonl file as examples of a task.

    Args:
        path: The data file.
        task_name: A name in `TASKS`, or `auto` to tell it from the fields of the first record.
        labelled: Whether every record must say the right answer; otherwise answers are ignored.

    Raises:
        UsageError: If the task is not in the table.
        DataError: If the file or a record is bad.
    """
    records = read_jsonl(path)
    task = _detect_task(records) if task_name == AUTO_TASK else find_task(task_name)
    return Dataset(task, path, tuple(_to_example(task, record, labelled) for record in records))


def find_task(name: str) -> Task:
    """Return the task of that name.

    Raises:
        UsageError: If the table has no such task.
    """
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}", hint=f"known: {AUTO_TASK}, {', '.join(TASKS)}")
    return TASKS[name]


def _detect_task(records: Sequence[Record]) -> Task:
    first = records[0]
    for task in TASKS.values():
        if task.prompt_field in first.fields:
            return task
    expected = " or ".join(f'"{task.prompt_field}" and "{task.answer_field}"' for task in TASKS.values())
    raise DataError(f"cannot tell the task from the fields {sorted(first.fields)}", where=first.where,
                    hint=f"expected {expected}, or name one with --task")  # fmt: skip


def _to_example(task: Task, record: Record, labelled: bool) -> Example:
    prompt = task.prompt(record.text(task.prompt_field))
    return Example(prompt, task.completion(record) if labelled else None, record.where)
