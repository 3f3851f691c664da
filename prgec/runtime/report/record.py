"""The readable record of a run folder: run.json and metrics.jsonl, also of a run under way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.core.formats.run_folder import METRICS_NAME, PARTIAL_METRICS_NAME, SUMMARY_NAME
from prgec.errors import DataError
from prgec.runtime.report.curves import Score

_GROUPS = ("options", "manifest")
_NUMBERS = ("loss", "lr", "seconds", "eval_loss", "eval_accuracy")


@dataclass(frozen=True)
class RunRecord:
    """The readable record of a run.

    Attributes:
        name: Name of the folder.
        summary: Content of run.json; empty while the run is under way.
        steps: Lines of metrics.jsonl about steps.
        evaluations: Its lines about evaluations.
    """

    name: str
    summary: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]

    @property
    def scores(self) -> list[Score]:
        """Results of evaluations."""
        return [(line["step"], line["eval_loss"], line.get("eval_accuracy")) for line in self.evaluations]


def read_run(folder: Path) -> RunRecord:
    """Read a run folder, also one of a run under way.

    Raises:
        DataError: If it holds no run, or its files are damaged.
    """
    metrics = next((folder / n for n in (METRICS_NAME, PARTIAL_METRICS_NAME) if (folder / n).is_file()), None)
    if metrics is None:
        raise DataError("no run in this folder", where=folder, hint="name the --out of a prgec run")
    summary_path = folder / SUMMARY_NAME
    try:
        summary = json.loads(summary_path.read_bytes()) if summary_path.is_file() else {}
        text = metrics.read_text(encoding="utf-8")
        # The last line of a run under way may be half a line.
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        _check(summary, lines)
        steps = [line for line in lines if "loss" in line]
        evaluations = [line for line in lines if "eval_loss" in line]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"the run's files are damaged: {error}", where=folder) from error
    return RunRecord(folder.resolve().name, summary, steps, evaluations)


def _check(summary: Any, lines: Sequence[Any]) -> None:
    """Refuse what pages would trip over.

    Raises:
        ValueError: If the files are not of the kind that runs write.
    """
    if not isinstance(summary, dict) or not all(isinstance(summary.get(name, {}), dict) for name in _GROUPS):
        raise ValueError("run.json is not what this version writes")
    for line in lines:
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise ValueError("a line of the metrics has no step")
        if not all(isinstance(line.get(name, 0.0), int | float | None) for name in _NUMBERS):
            raise ValueError(f"step {line['step']} has something else than numbers")
