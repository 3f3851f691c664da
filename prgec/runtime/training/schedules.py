"""The table of learning-rate schedules: lr is a runtime input of the program, so its course is host policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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


CONSTANT = "constant"
SCHEDULES: dict[str, Schedule] = {CONSTANT: constant, "linear": linear, "cosine": cosine}
DEFAULT_SCHEDULE = "linear"


@dataclass(frozen=True)
class Rates:
    """A course of learning rates.

    Attributes:
        steps: Steps of the run.
        lr: Learning rate at its peak.
        schedule: Row of the table.
        warmup: Steps over which lr rises in a straight line; the schedule follows over the others.
    """

    steps: int
    lr: float
    schedule: str = DEFAULT_SCHEDULE
    warmup: int = 0


def learning_rate(rates: Rates, step: int) -> float:
    """Return the learning rate of one step, counted from 1.

    Raises:
        UsageError: If the table has no such schedule.
    """
    schedule = find_schedule(rates.schedule)
    if step <= rates.warmup:
        return rates.lr * step / (rates.warmup + 1)
    return rates.lr * schedule((step - 1 - rates.warmup) / (rates.steps - rates.warmup))


def course(rates: Rates) -> str:
    """Return the name a journal has for the course of the learning rate: `linear`, or `linear+50` with warm-up."""
    return f"{rates.schedule}+{rates.warmup}" if rates.warmup else rates.schedule


def find_schedule(name: str) -> Schedule:
    """Return the schedule of that name.

    Raises:
        UsageError: If the table has no such schedule.
    """
    if name not in SCHEDULES:
        raise UsageError(f"unknown schedule {name!r}", hint=f"known: {', '.join(SCHEDULES)}")
    return SCHEDULES[name]
