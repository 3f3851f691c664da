"""The texts of an example for an encoder with a head of its own, and the class that an answer means."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prgec.core.contract.names import SCORE_UNIT
from prgec.core.data.task import Example
from prgec.errors import DataError

# Texts that an encoder distinguishes.
_MOST_TEXTS = 2


def texts_of(example: Example) -> tuple[str, ...]:
    """Return the one or two texts of an example; its prompt where it has more, or none."""
    return example.texts if 1 <= len(example.texts) <= _MOST_TEXTS else (example.prompt,)


def target_of(example: Example, answer: str, classes: Sequence[str]) -> int:
    """Return the class an answer means, or the score it is, in units of `SCORE_UNIT`.

    Args:
        example: Names the answers in label order, where its task does.
        answer: One of them, or one of `classes`; a number where there is one class.
        classes: The model's, by index.

    Raises:
        DataError: If the answer is none of them, or the task has another number of them.
    """
    if len(classes) == 1:
        return round(score_of(answer, example.where) / SCORE_UNIT)
    if example.classes and len(example.classes) != len(classes):
        raise DataError(
            f"the task has {len(example.classes)} answers, the model {len(classes)} classes", where=example.where
        )
    for names in (example.classes, classes):
        known = [name.strip().lower() for name in names]
        if answer.strip().lower() in known:
            return known.index(answer.strip().lower())
    # A label that is a number is a place among classes that have names.
    if answer.strip().isdecimal() and int(answer) < len(classes):
        return int(answer)
    raise DataError(
        f"the answer {answer!r} is not one of the model's classes",
        where=example.where,
        hint=f"known: {', '.join(classes)}",
    )


def score_of(answer: str, where: str) -> float:
    """Return the score a text is.

    Raises:
        DataError: If it is none, or below 0: targets are whole numbers without a sign.
    """
    try:
        score = float(answer)
    except ValueError:
        score = math.nan
    if not (math.isfinite(score) and score >= 0):
        raise DataError(f"the answer {answer!r} is not a score of 0 or more", where=where)
    return score
