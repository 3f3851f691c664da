"""A reward by name: `prgec run --reward polite`, or `--reward polite:danke`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def polite(answer: str, record: Mapping[str, Any], argument: str) -> float:
    """Return 1 if an answer has a word of thanks, else 0.

    Args:
        answer: Text that the program wrote.
        record: The row of the prompt.
        argument: The word, where it is not "thanks".
    """
    return float((argument or "thanks") in answer.lower())
