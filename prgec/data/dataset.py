"""A data file under one task: detection from the fields, the items, and samples of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from prgec.data.jsonl import Record
from prgec.data.records import read_records
from prgec.data.task import ACCURACY, Example, Item, Task, TemplateTask, has, spellings
from prgec.data.tasks import AUTO_TASK, TASKS, find_task
from prgec.errors import DataError

MAX_DERIVED_CANDIDATES = 16
# The paper's low-volume condition (section D.2, after MeZO): 1,000 training, 500 validation and 1,000 test examples.
LOW_VOLUME_TRAIN, LOW_VOLUME_DEV, LOW_VOLUME_TEST = 1000, 500, 1000
# RTE in GLUE's own files has the fields of MRPC and WNLI, and says so by its labels.
_ENTAILMENT_LABELS = frozenset({"entailment", "not_entailment"})
# A record with a text and a label is a classification somebody has in mind, not plain text.
_PLAIN_TEXT = "text"


@dataclass(frozen=True)
class Dataset:
    """A data file read under one task.

    Attributes:
        task: Row of the task table.
        path: File the examples came from.
        examples: Items in file order.
        found_by: Why it is this task, for people.
    """

    task: Task
    path: Path
    examples: tuple[Item, ...]
    found_by: str = ""

    def candidates(self) -> tuple[str, ...]:
        """Return the choices an answer is picked from; empty when items bring their own or the task is open-ended.

        A free-text task becomes a choice when its data hold 2 to 16 distinct completions.
        """
        if self.task.candidates or self.task.metric != ACCURACY or self.has_own_candidates:
            return self.task.candidates
        completions = {each.completion for each in self.examples if isinstance(each, Example)}
        distinct = sorted(completion for completion in completions if completion is not None)
        return tuple(distinct) if 2 <= len(distinct) <= MAX_DERIVED_CANDIDATES else ()

    @property
    def has_own_candidates(self) -> bool:
        """Whether every item brings its choices."""
        return all(isinstance(each, Example) and each.candidates for each in self.examples)

    def sample(self, count: int, seed: int) -> Dataset:
        """Return `count` items in a random order; all of them where there are fewer."""
        return self._at(_shuffled(len(self.examples), seed)[:count])

    def low_volume(self, seed: int) -> tuple[Dataset, Dataset]:
        """Return 1,000 items to train on and 500 others to choose by; a third of the data where there are too few."""
        order = _shuffled(len(self.examples), seed)
        num_dev = min(LOW_VOLUME_DEV, len(order) // 3)
        num_train = min(LOW_VOLUME_TRAIN, len(order) - num_dev)
        return self._at(order[:num_train]), self._at(order[num_train : num_train + num_dev])

    def describe(self) -> str:
        """Return one line for people: the task and why."""
        return f"task {self.task.name} ({self.found_by}), {len(self.examples)} items of {self.path}"

    def _at(self, indices: Sequence[int]) -> Dataset:
        return replace(self, examples=tuple(self.examples[i] for i in indices))


def load_dataset(path: Path, task_name: str = AUTO_TASK, *, labelled: bool = True) -> Dataset:
    """Read a data file as items of a task.

    Args:
        path: The data file.
        task_name: A name in `TASKS`, a .toml file, or `auto` to tell it from the fields of the first record.
        labelled: Whether every record must say the right answer; otherwise answers are ignored.

    Raises:
        UsageError: If the task is not in the table.
        DataError: If the file or a record is bad.
    """
    # A task that cannot be found is said before a large file is read.
    named = None if task_name == AUTO_TASK else find_task(task_name)
    records = read_records(path)
    task, found_by = (named, "named") if named is not None else detect_task(records, labelled)
    for record in records:
        _check_fields(task, record, records[0], labelled)
    items = []
    records.reverse()
    while records:  # records take more memory than what they become, so each is dropped at once
        items.append(task.item(records.pop(), labelled=labelled))
    return Dataset(task, path, tuple(items), found_by)


def detect_task(records: Sequence[Record], labelled: bool) -> tuple[Task, str]:
    """Tell the task from the fields of the first record; among tasks of equal fields, from a folder's or file's name.

    The task that reads most of the fields wins, so that BoolQ's `question` and `passage` are not mistaken for less.

    Returns:
        The task, and why.

    Raises:
        DataError: If no task fits, or several do.
    """
    first = records[0]
    called = [task for task in _called(first) if not _missing(task, first, labelled)]
    if called:
        return called[
            0
        ], f"from the fields {', '.join(_needed(called[0], labelled))} and the name of the folder or file"
    fits = [task for task in _told_by_fields() if not _missing(task, first, labelled)]
    if not fits:
        # Perhaps only the answer is missing: the message about it is the clearer one.
        fits = [task for task in _told_by_fields() if not _missing(task, first, False)]
    most = max((len(_needed(task, labelled)) for task in fits), default=0)
    best = [task for task in fits if len(_needed(task, labelled)) == most]
    if not best or (best[0].name == _PLAIN_TEXT and "label" in first.fields):
        raise DataError(f"cannot infer the task from the fields {_listed(first)}", where=first.where, hint=_hint(first))
    why = ""
    if len(best) > 1:
        best, why = _narrowed(best, first)
    if len(best) > 1:
        raise DataError(
            f"the fields {_listed(first)} fit the tasks {', '.join(task.name for task in best)}",
            where=first.where,
            hint="name one with --task",
        )
    return best[0], f"from the fields {', '.join(_needed(best[0], labelled))}{why}"


def _told_by_fields() -> list[Task]:
    return [task for task in TASKS.values() if not (isinstance(task, TemplateTask) and task.is_named)]


def _called(first: Record) -> list[Task]:
    """Tasks that want their name, and have it: `STS-B/train.tsv`, `mnli_matched.jsonl`."""
    parts = [part.lower().replace("-", "") for part in (*first.path.parts, first.path.stem)]
    named = [task for task in TASKS.values() if isinstance(task, TemplateTask) and task.is_named]
    return [task for task in named if any(part == task.name or part.startswith(f"{task.name}_") for part in parts)]


def _narrowed(tasks: list[Task], first: Record) -> tuple[list[Task], str]:
    if str(first.fields.get("label")).strip().lower() in _ENTAILMENT_LABELS:
        return [task for task in tasks if task.name == "rte"], " and the label"
    parts = {part.lower() for part in (*first.path.parts, first.path.stem)}
    named = [task for task in tasks if task.name in parts]
    return (named, " and the name of the folder or file") if len(named) == 1 else (tasks, "")


def _hint(record: Record) -> str:
    """Name the tasks that a record is nearest to, with what they need."""
    near = [task for task in TASKS.values() if any(has(record, name, task.aliases) for name in task.fields)]
    shown = "; ".join(f"{task.name} needs {', '.join(_needed(task, labelled=True))}" for task in near[:4])
    return f"{shown or 'known tasks: ' + ', '.join(TASKS)}; name one with --task, or write your own in a .toml file"


def _needed(task: Task, labelled: bool) -> tuple[str, ...]:
    return (*task.fields, task.answer_field) if labelled and task.answer_field else task.fields


def _missing(task: Task, record: Record, labelled: bool) -> list[str]:
    return [name for name in _needed(task, labelled) if not has(record, name, task.aliases)]


def _check_fields(task: Task, record: Record, first: Record, labelled: bool) -> None:
    missing = _missing(task, record, labelled)
    if not missing:
        return
    expected = ", ".join("/".join(spellings(name, task.aliases)) for name in _needed(task, labelled))
    found = f"found {_listed(record)}; task {task.name} needs {expected}"
    if record is first or set(record.fields) & set(first.fields):
        raise DataError(f'missing field "{missing[0]}": {found}', where=record.where)
    raise DataError(f"mixed formats in one file: {found}, which {first.unit} {first.line} has", where=record.where)


def _listed(record: Record) -> str:
    return ", ".join(sorted(record.fields)) or "none"


def _shuffled(count: int, seed: int) -> list[int]:
    # Raw PCG64 output: numpy keeps it stable across versions, and `permutation` carries no such promise.
    keys = np.random.PCG64(seed % 2**64).random_raw(count)
    order: list[int] = np.argsort(keys, kind="stable").tolist()
    return order
