"""Infer the task of a data file from the fields of its first record, and hold the other records to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

from prgec.core.data.feedback import refuse_feedback
from prgec.core.data.jsonl import Record
from prgec.core.data.task import Task, TemplateTask, has, spellings
from prgec.core.data.tasks import TASKS
from prgec.errors import DataError

# Prompts without answers are right where a reward judges the answers that the program writes.
_PROMPTS_HINT = "to learn from prompts alone, compile with --seq-len and --label-tokens, and run with --reward"
# RTE in GLUE's own files has the fields of MRPC and WNLI, and says so by its labels.
_ENTAILMENT_LABELS = frozenset({"entailment", "not_entailment"})


def detect(records: Iterator[Record], labelled: bool) -> tuple[Iterator[Record], Task, str]:
    """Infer the task as `detect_task` does; names of fields may be in capitals where that is all that is in the way.

    Rows that need no answers but have them are of the task that reads them.

    Args:
        records: At least one.
        labelled: Whether each must say the right answer.

    Returns:
        The records, with lower-case names where only these fit; the task, and why.

    Raises:
        DataError: If no task fits, or several do.
    """
    first = next(records)
    spelled, task, found_by = _detected(first, labelled)
    return map(spelled, chain([first], records)), task, found_by


def _detected(first: Record, labelled: bool) -> tuple[Callable[[Record], Record], Task, str]:
    """Return how names of fields are to be read, the task, and why."""
    if not labelled:
        with contextlib.suppress(DataError):
            return _detected(first, labelled=True)
    try:
        return (lambda record: record), *detect_task(first, labelled)
    except DataError as error:
        lowered = _lowered(first)
        if lowered.fields.keys() == first.fields.keys():
            raise
        try:
            return _lowered, *detect_task(lowered, labelled)
        except DataError:
            raise error from None


def _lowered(record: Record) -> Record:
    return replace(record, fields={name.lower(): value for name, value in record.fields.items()})


def detect_task(first: Record, labelled: bool) -> tuple[Task, str]:
    """Infer the task from the fields of the first record; among tasks of equal fields, from a folder's or file's name.

    The task that reads most of the fields wins, so that BoolQ's `question` and `passage` are not mistaken for less.

    Returns:
        The task, and why.

    Raises:
        DataError: If no task fits, or several do.
    """
    refuse_feedback(first)
    called = [task for task in _called(first) if not _missing(task, first, labelled)]
    if called:
        return called[0], f"from the fields {_spelled(called[0], first, labelled)} and the name of the folder or file"
    fits = [task for task in _told_by_fields() if not _missing(task, first, labelled)]
    if not fits:
        # Perhaps only the answer is missing: the message about it is the clearer one.
        fits = [task for task in _told_by_fields() if not _missing(task, first, False)]
    most = max((len(_needed(task, labelled)) for task in fits), default=0)
    best = [task for task in fits if len(_needed(task, labelled)) == most]
    if not best:
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
    return best[0], f"from the fields {_spelled(best[0], first, labelled)}{why}"


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
    return (
        f"{shown or 'known tasks: ' + ', '.join(TASKS)}; name columns (--map prompt=COLUMN --map completion=COLUMN), "
        "name one with --task, or write your own in a .toml file"
    )


def _needed(task: Task, labelled: bool) -> tuple[str, ...]:
    return (*task.fields, task.answer_field) if labelled and task.answer_field else task.fields


def _spelled(task: Task, record: Record, labelled: bool) -> str:
    """Return the fields of a task as the record calls them."""
    names = (spellings(name, task.aliases) for name in _needed(task, labelled))
    return ", ".join(next((each for each in known if has(record, each, {})), known[0]) for known in names)


def _missing(task: Task, record: Record, labelled: bool) -> list[str]:
    return [name for name in _needed(task, labelled) if not has(record, name, task.aliases)]


def check_fields(task: Task, record: Record, first: Record, labelled: bool) -> None:
    """Refuse a record that lacks a field of its task, or has another format than the first record.

    Raises:
        DataError: Naming the field.
    """
    missing = _missing(task, record, labelled)
    if not missing:
        return
    expected = ", ".join("/".join(spellings(name, task.aliases)) for name in _needed(task, labelled))
    found = f"found {_listed(record)}; task {task.name} needs {expected}"
    if record is first or set(record.fields) & set(first.fields):
        is_prompt = missing == [task.answer_field] and task.name == "completion"
        raise DataError(
            f'missing field "{missing[0]}": {found}', where=record.where, hint=_PROMPTS_HINT if is_prompt else None
        )
    raise DataError(f"mixed formats in one file: {found}, which {first.unit} {first.line} has", where=record.where)


def _listed(record: Record) -> str:
    return ", ".join(sorted(record.fields)) or "none"
