"""Rows of feedback: two answers to one prompt, one of them chosen, or single answers with a thumb up or down.

Fields are those of TRL: `prompt`, `chosen` and `rejected`, texts or lists of turns, with the prompt in both answers
where there is no `prompt`; or `prompt`, `completion` and `label`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prgec.core.data.formats import CompletionFormat
from prgec.core.data.jsonl import Record
from prgec.core.data.task import Item
from prgec.errors import DataError

CHOSEN, REJECTED, LABEL = "chosen", "rejected", "label"
PROMPT, COMPLETION = "prompt", "completion"
_THUMBS = {"true": True, "1": True, "false": False, "0": False}
# Answers of feedback are never a closed set.
FEEDBACK = CompletionFormat(most_answers=0)


def is_pair(record: Record) -> bool:
    """Whether a record has two answers, one of them chosen."""
    return {CHOSEN, REJECTED} <= set(record.fields)


def is_thumb(record: Record) -> bool:
    """Whether a record has one answer, and says that it is good or that it is not."""
    return {PROMPT, COMPLETION} <= set(record.fields) and isinstance(record.fields.get(LABEL), bool)


def refuse_feedback(first: Record) -> None:
    """Refuse rows of feedback where right answers are wanted.

    Raises:
        DataError: If the first record is one.
    """
    if is_pair(first):
        raise DataError(
            "rows with chosen and rejected answers need a preference objective",
            where=first.where,
            hint="train with prgec run --objective dpo, or learn the chosen ones with --map completion=chosen",
        )
    if is_thumb(first):
        raise DataError(
            "rows that say which answers are good need an objective that unlearns the others",
            where=first.where,
            hint="train with prgec run --objective kto, or leave the field label out to learn all of them",
        )


def answers_of_records(records: Sequence[Record]) -> tuple[list[Record], list[bool]]:
    """Return one record for each answer, and whether it is a good one; pairs become chosen, rejected.

    Raises:
        DataError: If a record is not of the kind of the first, or its label is none.
    """
    answers, is_good = [], []
    for record in records:
        if is_pair(record) != is_pair(records[0]):
            raise DataError("mixed formats in one file: pairs and single answers", where=record.where)
        if is_pair(record):
            answers += _halves(record)
            is_good += [True, False]
        else:
            answers.append(record)
            is_good.append(_thumb(record))
    return answers, is_good


def to_other_prompts(records: Sequence[Record]) -> list[Record]:
    """Return each record with the answer of the next one that has another prompt."""
    moved = []
    for number, record in enumerate(records):
        prompt = record.fields.get(PROMPT)
        after = (records[(number + n) % len(records)] for n in range(1, len(records)))
        other = next((each for each in after if each.fields.get(PROMPT) != prompt), record)
        moved.append(replace(record, fields={**record.fields, COMPLETION: other.fields.get(COMPLETION)}))
    return moved


def feedback_item(record: Record) -> Item:
    """Return prompt and answer as an item; its end is learned too.

    Raises:
        DataError: If the record lacks one of them, or one is neither text nor turns.
    """
    return FEEDBACK.item(record, labelled=True)


def _halves(record: Record) -> list[Record]:
    fields = dict(record.fields)
    chosen, rejected = fields.pop(CHOSEN), fields.pop(REJECTED)
    prompt = fields.get(PROMPT)
    # Published files have the prompt as a text beside answers that are whole conversations.
    if prompt is None or (isinstance(prompt, str) and isinstance(chosen, list)):
        prompt, chosen, rejected = _split(chosen, rejected, record)
    return [replace(record, fields={**fields, PROMPT: prompt, COMPLETION: each}) for each in (chosen, rejected)]


def _split(chosen: Any, rejected: Any, record: Record) -> tuple[Any, Any, Any]:
    """Return what both answers begin with, and what is left of each."""
    if type(chosen) is not type(rejected) or not isinstance(chosen, str | list):
        raise DataError(
            f'fields "chosen" and "rejected" are {type(chosen).__name__} and {type(rejected).__name__}; expected texts '
            "or lists of turns",
            where=record.where,
        )
    if isinstance(chosen, str):
        start = len(os.path.commonprefix([chosen, rejected]))
        # Words stay whole: an answer begins with the space before its first one.
        start = chosen.rfind(" ", 0, start) if chosen[start - 1 : start] != " " else start - 1
    else:
        start = next(
            (n for n, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b),
            min(len(chosen), len(rejected)),
        )
    if start <= 0 or start == min(len(chosen), len(rejected)):
        raise DataError(
            'fields "chosen" and "rejected" do not begin with one prompt',
            where=record.where,
            hint='give the prompt in a field "prompt"',
        )
    return chosen[:start], chosen[start:], rejected[start:]


def _thumb(record: Record) -> bool:
    value = record.fields.get(LABEL)
    known = _THUMBS.get(str(value).strip().lower())
    if known is None:
        raise DataError(
            f'field "label" is {value!r}; expected true for a good answer or false',
            where=record.where,
            hint="rows need prompt, completion and label, or prompt, chosen and rejected",
        )
    return known
