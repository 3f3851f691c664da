"""Sources of rewards: a process of its own, or functions of the program that calls prgec."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from prgec.errors import NumericsError

# A function of the prompt (a text, or turns), the answer, and the fields of the row.
RewardFunction: TypeAlias = Callable[[Any, str, dict[str, Any]], float]


class Judge(Protocol):
    """A source of rewards."""

    def start(self) -> None:
        """Get ready.

        Raises:
            DataError: If a reward cannot be loaded.
        """

    def score(self, prompt: Any, answer: str, record: dict[str, Any]) -> float:
        """Return the reward of an answer, a finite number.

        Raises:
            NumericsError: If there is none.
        """


class FunctionJudge:
    """Adds the results of functions in this process, without limits.

    Args:
        functions: The functions.
    """

    def __init__(self, functions: Sequence[RewardFunction]) -> None:
        self._functions = tuple(functions)

    def start(self) -> None:
        """Nothing has to be started."""

    def score(self, prompt: Any, answer: str, record: dict[str, Any]) -> float:
        """Return the sum of the functions' results.

        Raises:
            NumericsError: If one raises, or the sum is not a finite number.
        """
        total = 0.0
        for each in self._functions:
            name = getattr(each, "__name__", type(each).__name__)
            try:
                total += float(each(prompt, answer, record))
            except Exception as error:  # a user's function may raise anything
                raise NumericsError(f"no reward: {name} raised {type(error).__name__}: {error}") from error
            if not math.isfinite(total):
                raise NumericsError(f"no reward: {name} returned no finite number")
        return total
