"""The table of learning-rate schedules: lr is a runtime input of the program, so its course is host policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from prgec.errors import UsageError

# Maps progress, the share of the run already done in [0, 1), to a factor on --lr.
Schedule: TypeAlias = Callable[[float], float]


def constant(progress: float) -> float:
    """Keep lr as it is."""
    return 1.0


def linear(progress: float) -> float:
    """Fall to 0 in a straight line."""
    return 1.0 - progress


def cosine(progress: float) -> float:
    """Fall to 0 along half a cosine."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


SCHEDULES: dict[str, Schedule] = {"constant": constant, "linear": linear, "cosine": cosine}
DEFAULT_SCHEDULE = "linear"


def find_schedule(name: str) -> Schedule:
    """Return the schedule of that name.

    Raises:
        UsageError: If the table has no such schedule.
    """
    if name not in SCHEDULES:
        raise UsageError(f"unknown schedule {name!r}", hint=f"known: {', '.join(SCHEDULES)}")
    return SCHEDULES[name]
