"""The budget of a study's runs: equal rows, equal seconds, and equal memory with either."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.errors import UsageError

_ROWS_BETWEEN_SCORES = 3200
_SCORES_OF_SECONDS = 10
_MEGABYTE = 10**6
KEYS = ("forward_rows", "seconds", "clock", "memory_mb", "eval_every")
# The clock of seconds: the wall's, or a processor's, which other work on the machine does not lengthen.
_CLOCKS = ("wall", "cpu")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The budget of a run.

    Attributes:
        forward_rows: Rows of forward passes, where a backward pass counts as two forward passes; 0 for seconds instead.
        seconds: Time of training steps; 0 for rows instead.
        clock: wall, or cpu for seconds of a processor.
        memory_bytes: The most that steps may add to a process that holds the model; options of a method that add more
            do not compete. 0 for any.
        eval_every: Budget between two scores on dev, in rows or in seconds.
    """

    forward_rows: int
    seconds: float
    clock: str
    memory_bytes: int
    eval_every: float

    @property
    def text(self) -> str:
        """The budget in words."""
        each = (
            f"{self.seconds:g} s of {'a processor for ' if self.clock == 'cpu' else ''}training steps a run"
            if self.seconds
            else f"{self.forward_rows:,} rows of forward passes a run (a backward pass counts as two forward passes)"
        )
        most = f"{self.memory_bytes / _MEGABYTE:g} MB"
        return f"{each}, whose steps add at most {most} to the model" if self.memory_bytes else each

    @property
    def key(self) -> tuple[Any, Any]:
        """The part that runs depend on: memory only decides which of them count."""
        unit = "s" if self.clock == "wall" else f"{self.clock} s"
        return (f"{self.seconds} {unit}", self.eval_every) if self.seconds else (self.forward_rows, self.eval_every)

    def holds(self, memory_bytes: Sequence[int | None]) -> bool:
        """Whether options compete whose runs added so much: the median counts, since single runs differ by megabytes.

        Options with a run that was not measured compete where memory does not count.
        """
        measured = [each for each in memory_bytes if each is not None]
        if not self.memory_bytes:
            return True
        return len(measured) == len(memory_bytes) > 0 and statistics.median(measured) <= self.memory_bytes


def read_budget(raw: Mapping[str, Any], path: Path) -> Budget:
    """Make the budget of a study out of its keys.

    Raises:
        KeyError: If there is neither `forward_rows` nor `seconds`.
        UsageError: If both are there, or a value is impossible.
    """
    seconds, memory_mb = raw.get("seconds", 0.0), raw.get("memory_mb", 0)
    if "seconds" in raw and "forward_rows" in raw:
        raise UsageError("the study has both forward_rows and seconds; expected one of them", where=path)
    rows = 0 if "seconds" in raw else raw["forward_rows"]
    usual = seconds / _SCORES_OF_SECONDS if "seconds" in raw else _ROWS_BETWEEN_SCORES
    every = raw.get("eval_every", usual)
    clock = raw.get("clock", _CLOCKS[0])
    if clock not in _CLOCKS or ("clock" in raw and "seconds" not in raw):
        raise UsageError(f"clock is {clock!r}; expected one of {', '.join(_CLOCKS)}, beside seconds", where=path)
    for name in ("seconds", "memory_mb"):
        if name in raw and not (_is_number(raw[name]) and raw[name] > 0):
            raise UsageError(f"{name} is {raw[name]!r}; expected a positive number", where=path)
    if "seconds" not in raw and not (isinstance(rows, int) and rows >= 1):
        raise UsageError(f"forward_rows is {rows!r}; expected a positive integer", where=path)
    if not (_is_number(every) and (every > 0 if seconds else isinstance(every, int) and every >= 1)):
        kind = "number" if seconds else "integer"
        raise UsageError(f"eval_every is {every!r}; expected a positive {kind}", where=path)
    return Budget(
        forward_rows=rows,
        seconds=float(seconds),
        clock=clock,
        memory_bytes=round(memory_mb * _MEGABYTE),
        eval_every=every,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < float("inf")
