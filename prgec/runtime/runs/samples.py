"""Sample answers of a run for `prgec report`: some before training, and the same after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prgec.core.data.eval_set import EvalSet
from prgec.core.data.prompts import Prompt
from prgec.core.data.rows_file import RowSet
from prgec.runtime.training.evaluate import Evaluation

MAX_SAMPLES = 12


def samples(
    eval_set: RowSet | None, before: Evaluation | None, after: Evaluation | None, prompts: Sequence[Prompt] = ()
) -> list[dict[str, Any]]:
    """Return the first examples with the answers they got before and after training; empty for open-ended tasks.

    In the first half, changed answers come first: readers look for them.

    Args:
        eval_set: The rows of the evaluations.
        before: The evaluation before training.
        after: The evaluation after training.
        prompts: The prompts of evaluations, in a run by rewards.
    """
    if not (before and after and before.answers and after.answers):
        return []
    if isinstance(eval_set, EvalSet):
        asked = [(each.prompt, _right(each.references, each.completion)) for each in eval_set.examples]
    else:
        asked = [(_shown(each), "") for each in prompts]
    rows = [
        {"prompt": prompt, "right": right, "before": old, "after": new}
        for (prompt, right), old, new in zip(asked, before.answers, after.answers, strict=True)
    ]
    changed = [row for row in rows if row["before"] != row["after"]][: MAX_SAMPLES // 2]
    return [*changed, *(row for row in rows if row not in changed)][:MAX_SAMPLES]


def _right(references: tuple[str, ...], completion: str | None) -> str:
    return references[0] if references else completion or ""


def _shown(prompt: Prompt) -> str:
    """Return the text of a prompt, or the last turn of a chat."""
    return prompt.shown if isinstance(prompt.shown, str) else str(prompt.shown[-1].get("content", ""))
