r"""A task of the user's own, described in a TOML file.

    template = "Ticket: {subject}\n{body}\nUrgent?"    # {name} is a field of a record
    candidates = [" No", " Yes"]                        # continuations; they may read fields too
    answer_field = "urgent"                             # field with the label
    labels = { no = 0, yes = 1 }                        # spelling of a label -> candidate; 0, 1, ... without it

Without candidates answers are free text: `answer = " {answer}\n"` is the continuation, and `metric = "f1"` compares
generated answers as SQuAD does.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from prgec.core.data.task import ACCURACY, LOSS, METRICS, OF_TEXT, TemplateTask, placeholders
from prgec.errors import UsageError

_KINDS: dict[str, type | tuple[type, ...]] = {
    "template": str,
    "candidates": list,
    "answer_field": str,
    "labels": dict,
    "answer": str,
    "metric": str,
    "verbatim": bool,
}


def read_task(name: str) -> TemplateTask:
    """Read a task from a TOML file; it is called after the file.

    Raises:
        UsageError: If the file is missing, is not TOML, or does not describe a task.
    """
    path = Path(name)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError("no such task file", where=path) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the task file: {error}", where=path) from error
    return _task(path, raw)


def _task(path: Path, raw: dict[str, Any]) -> TemplateTask:
    for key, value in raw.items():
        if key not in _KINDS:
            raise UsageError(f'a task has no "{key}"', where=path, hint=f"known: {', '.join(_KINDS)}")
        if not isinstance(value, _KINDS[key]):
            raise UsageError(f'"{key}" is {type(value).__name__}', where=path)
    for key in ("template", "answer_field"):
        if not raw.get(key):
            raise UsageError(f'the task file has no "{key}"', where=path)
    choices = _choices(path, raw)
    answer = raw.get("answer", "" if choices else " {answer}")
    if bool(choices) == bool(answer):
        raise UsageError('a task has either "candidates" or "answer"', where=path)
    metric = raw.get("metric", ACCURACY if choices else LOSS)
    if metric not in METRICS or (metric in OF_TEXT and choices) or (metric == ACCURACY and not choices):
        raise UsageError(
            f'"metric" is {metric!r}', where=path, hint="accuracy with candidates; f1, rouge or loss without"
        )
    names = [name for text in (raw["template"], *choices) for name in placeholders(text)]
    if not names:
        raise UsageError('"template" reads no field', where=path, hint='write fields as "{name}"')
    return TemplateTask(
        name=path.stem,
        fields=tuple(dict.fromkeys(names)),
        answer_field=raw["answer_field"],
        template=raw["template"],
        choices=choices,
        labels=_labels(path, raw, len(choices)),
        answer=answer,
        metric=metric,
        verbatim=raw.get("verbatim", False),
    )


def _choices(path: Path, raw: dict[str, Any]) -> tuple[str, ...]:
    choices = raw.get("candidates", [])
    if not all(isinstance(choice, str) and choice for choice in choices) or len(choices) == 1:
        raise UsageError('"candidates" is not a list of two texts or more', where=path)
    if len(set(choices)) != len(choices):
        raise UsageError('"candidates" holds a text twice', where=path)
    return tuple(choices)


def _labels(path: Path, raw: dict[str, Any], num_choices: int) -> dict[str, int]:
    labels = {str(key).lower(): value for key, value in raw.get("labels", {}).items()}
    labels = labels or {str(index): index for index in range(num_choices)}
    for label, index in labels.items():
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < max(num_choices, 1):
            raise UsageError(f'label "{label}" means candidate {index!r} of {num_choices}', where=path)
    return labels
