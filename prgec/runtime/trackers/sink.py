"""The interface of trackers: a run's options, lines of its metrics, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers see it.

    Attributes:
        folder: The run folder.
        options: Options of the run, by name.
    """

    folder: Path
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The run's name."""
        return self.folder.resolve().name


class Sink(Protocol):
    """A tracker; all calls come from one thread, `begin` first and `end` last.

    An error that it raises ends its own part in the run, and nothing else.
    """

    def begin(self, run: TrackedRun) -> None:
        """A run begins or resumes; a resumed run sends all its lines again."""

    def log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Record lines of `metrics.jsonl`, in order; each has a `step`."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """The run ended, with this summary; empty where it failed."""


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
