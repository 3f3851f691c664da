"""Rewards that need no code of the user's: functions of an answer, its record and an argument, in [0, 1]."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from prgec.core.contract.plugins import load_plugin, plugins_of
from prgec.core.data.answers import exact_match, normalised
from prgec.core.data.rouge import rouge
from prgec.errors import DataError

# Fields with a right answer, the first that a record has.
REFERENCE_FIELDS = ("completion", "answer", "reference", "solution", "response", "label")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Builtin:
    """One row of the table.

    Attributes:
        name: Name on the command line.
        score: Computes it from the answer, its record and the argument.
        argument: Meaning of the text after the colon; empty where there is none.
        needs_argument: Whether it means nothing without one.
        prepare: Loads what it needs, before anything is scored.
    """

    name: str
    score: Callable[[str, Record, str], float]
    argument: str = ""
    needs_argument: bool = False
    prepare: Callable[[], object] = lambda: None


def contains(answer: str, record: Record, argument: str) -> float:
    """Return 1 if the words of the right answer, or of the argument, stand in the answer one after the other."""
    wanted = " ".join(normalised(argument or reference_of(record)))
    return float(f" {wanted} " in f" {' '.join(normalised(answer))} ")


def equals(answer: str, record: Record, argument: str) -> float:
    """Return 1 if the answer is the right one, or the argument; case, punctuation and articles do not count."""
    return exact_match(answer, [argument or reference_of(record)])


def regex(answer: str, record: Record, argument: str) -> float:
    """Return 1 if the pattern is found in the answer."""
    return float(re.search(argument, answer) is not None)


def json_object(answer: str, record: Record, argument: str) -> float:
    """Return 0 if the answer is not a JSON object; else the share of its being one and of the keys that it has."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return 0.0
    if not isinstance(value, dict):
        return 0.0
    keys = [key.strip() for key in argument.split(",") if key.strip()]
    return (1 + sum(key in value for key in keys)) / (1 + len(keys))


def max_words(answer: str, record: Record, argument: str) -> float:
    """Return 1 if the answer has words, and at most as many as the argument; else their ratio."""
    count = len(answer.split())
    return 0.0 if count == 0 else min(1.0, int(argument) / count)


def rouge_1(answer: str, record: Record, argument: str) -> float:
    """Return ROUGE-1 against the right answer."""
    return rouge([answer], [[argument or reference_of(record)]]).rouge1


def reference_of(record: Record) -> str:
    """Return the right answer of a record.

    Raises:
        DataError: If it has none.
    """
    for name in REFERENCE_FIELDS:
        value = record.get(name)
        if isinstance(value, list) and value and isinstance(value[-1], Mapping):
            value = value[-1].get("content")
        if isinstance(value, str | int | float):
            return str(value).strip()
    raise DataError(
        f"the record has no right answer; it has {', '.join(record) or 'no fields'}",
        hint=f"give it one of {', '.join(REFERENCE_FIELDS)}, or --map completion=THEIRS",
    )


def _of_plugin(point: EntryPoint) -> Builtin:
    """Return the row of an installed package, which is imported once the reward is chosen."""
    load = functools.cache(lambda: load_plugin(point))
    return Builtin(
        point.name, lambda answer, record, argument: float(load()(answer, record, argument)), "text", prepare=load
    )


# Packages add rewards by entry points of this group: functions of an answer, its record and an argument.
ENTRY_POINTS = "prgec.rewards"
BUILTINS: dict[str, Builtin] = {
    each.name: each
    for each in (
        Builtin("contains", contains, "text [default: the right answer]"),
        Builtin("equals", equals, "text [default: the right answer]"),
        Builtin("regex", regex, "pattern", needs_argument=True),
        Builtin("json", json_object, "keys, separated by commas"),
        Builtin("max_words", max_words, "number of words", needs_argument=True),
        Builtin("rouge", rouge_1, "text [default: the right answer]"),
    )
}
BUILTINS |= {name: _of_plugin(point) for name, point in plugins_of(ENTRY_POINTS, BUILTINS).items()}
