"""Weights of rows: the field `weight` of a record, and programs that cannot weigh."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from prgec.core.contract.chat import WEIGHT
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import LABEL_WEIGHTS_HINT
from prgec.core.data.jsonl import Record
from prgec.core.data.row import Row
from prgec.core.data.task import Item, Task
from prgec.errors import DataError

# Largest weight: a loss times it has its place in f32.
_LARGEST = 1e30
_NONE = (None, "")


def weighed_item(task: Task, record: Record, *, labelled: bool) -> Item:
    """Return the item of a record, with its weight.

    Raises:
        DataError: If the record is bad, or its weight not a finite number.
    """
    item = task.item(record, labelled=labelled)
    weight = 1.0 if WEIGHT in task.fields else weight_of(record)
    return item if weight == 1.0 else replace(item, weight=weight)


def weight_of(record: Record) -> float:
    """Return the weight of a record, which may be negative; 1 where it has none.

    Raises:
        DataError: If the weight is not a finite number.
    """
    value = record.fields.get(WEIGHT)
    if value in _NONE:
        return 1.0
    try:
        weight = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        weight = math.nan
    if not abs(weight) <= _LARGEST:
        raise DataError(f'field "weight" is {value!r}; expected a finite number', where=record.where)
    return weight


def check_weighs(rows: Iterable[Row], manifest: Manifest, where: object) -> None:
    """Refuse rows with weights for a program that would train on them as if they had none.

    Raises:
        DataError: Naming the first such row.
    """
    if manifest.label_weights:
        return
    found = next(((number, row.weights[0]) for number, row in enumerate(rows, start=1) if row.weights), None)
    if found is not None:
        number, weight = found
        raise DataError(
            f"row {number} has weight {weight:g}, and the program takes no label weights",
            where=where,
            hint=f"{LABEL_WEIGHTS_HINT}, or leave the field out",
        )
