"""What a tracker is told of a run: its options, lines of its metrics, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class TrackedRun:
    """What a run is to a tracker.

    Attributes:
        folder: The run folder.
        options: What the run does, by the names of its options.
    """

    folder: Path
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What people call it."""
        return self.folder.resolve().name


class Sink(Protocol):
    """A tracker; all calls come from one thread, `begin` first and `end` last.

    Whatever it raises ends its part in the run, and nothing else.
    """

    def begin(self, run: TrackedRun) -> None:
        """Hear that a run begins or goes on; a run that goes on tells all its lines again."""

    def log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Hear of lines of `metrics.jsonl`, in order; each has a `step`."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """Hear that the run ended, and with what; nothing where it failed."""


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Return what a line of metrics measured, by the name of a curve; what is not finite has no place on one."""
    named = {"eval/loss": line.get("eval_loss"), "eval/accuracy": line.get("eval_accuracy")}
    if "eval_loss" not in line:
        named = {"train/loss": line.get("loss"), "train/lr": line.get("lr")}
    if g := line.get("g"):
        named["train/g"] = math.sqrt(sum(each * each for each in g) / len(g))
    return finite(named)


def finite(named: Mapping[str, Any]) -> dict[str, float]:
    """Return those values that are finite numbers."""
    return {
        name: float(value)
        for name, value in named.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
