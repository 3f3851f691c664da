"""Sample answers of a run for `prgec report`: some before training, and the same after."""

from __future__ import annotations

from typing import Any

from prgec.core.data.eval_set import EvalSet
from prgec.core.data.rows_file import RowSet
from prgec.runtime.training.evaluate import Evaluation

MAX_SAMPLES = 12


def samples(eval_set: RowSet | None, before: Evaluation | None, after: Evaluation | None) -> list[dict[str, Any]]:
    """Return the first examples with the answers they got before and after training; empty for open-ended tasks.

    In the first half, changed answers come first: readers look for them.
    """
    if not isinstance(eval_set, EvalSet) or not (before and after and before.answers and after.answers):
        return []
    rows = [
        {"prompt": example.prompt, "right": _right(example.references, example.completion), "before": old, "after": new}
        for example, old, new in zip(eval_set.examples, before.answers, after.answers, strict=True)
    ]
    changed = [row for row in rows if row["before"] != row["after"]][: MAX_SAMPLES // 2]
    return [*changed, *(row for row in rows if row not in changed)][:MAX_SAMPLES]


def _right(references: tuple[str, ...], completion: str | None) -> str:
    return references[0] if references else completion or ""
