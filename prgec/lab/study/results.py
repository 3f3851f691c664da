"""The file of results: one line of JSON a finished run, so that an interrupted study goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prgec.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Point:
    """A score on dev during a run.

    Attributes:
        forward_rows: Rows of forward passes spent on training.
        accuracy: Share of dev examples answered right.
        loss: Mean loss on dev.
        wall_s: Wall-clock time of the training steps so far.
        cpu_s: CPU time of the training steps so far, over all threads.
    """

    forward_rows: int
    accuracy: float
    loss: float
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run.

    Attributes:
        key: Its key (`Run.key`).
        method: Name of the method.
        task: Name of the task.
        options: Options of the method.
        seed: Its seed.
        steps: Steps done.
        curve: Scores on dev, the first before any step.
        test_accuracy: Share of test examples answered right in the end.
        test_loss: Mean loss on test in the end.
        memory_bytes: The most memory that steps held above libraries, weights, tokenizer and data, room for inference
            included; None where it was not measured.
        failure: Why it stopped early; empty where it did not.
        commit: Commit of the code that did it; empty where it was not kept.
    """

    key: str
    method: str
    task: str
    options: dict[str, Any]
    seed: int
    steps: int
    curve: tuple[Point, ...]
    test_accuracy: float
    test_loss: float
    memory_bytes: int | None
    failure: str = ""
    commit: str = ""

    @property
    def dev_accuracy(self) -> float:
        """Score on dev in the end; what hyper-parameters are chosen by."""
        return self.curve[-1].accuracy

    @property
    def best_of_choice(self) -> tuple[float, float]:
        """The quantity that a choice maximises: accuracy on dev, and the lower loss among equals."""
        return self.dev_accuracy, -self.curve[-1].loss


def mean_of_choice(results: Sequence[Result]) -> tuple[float, ...]:
    """The quantity that a choice between options maximises over the runs of each: the means of `best_of_choice`."""
    pairs = [each.best_of_choice for each in results]
    return tuple(sum(values) / len(values) for values in zip(*pairs, strict=True))


def read_results(path: Path) -> dict[str, Result]:
    """Read finished runs by key; a last line cut short by a crash is ignored.

    Raises:
        DataError: If another line is damaged.
    """
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    results = {}
    for number, line in enumerate(lines, 1):
        try:
            raw = json.loads(line)
            # The high-water mark of a process that had done other runs before.
            if raw.pop("peak_bytes", None) is not None:
                raw["memory_bytes"] = None
            raw["curve"] = tuple(Point(**point) for point in raw["curve"])
            result = Result(**raw)
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):
                break
            raise DataError(
                f"line {number} is not a result: {error}",
                where=path,
                hint="delete the line; its run is then done again",
            ) from error
        results[result.key] = result
    return results


def append_result(path: Path, result: Result) -> None:
    """Add one line; half a line from a crash is cut off first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line_of(result))


def line_of(result: Result) -> bytes:
    """Return the line of the file of results that says `result`."""
    return json.dumps(asdict(result), allow_nan=False).encode() + b"\n"


def of_method(results: Iterable[Result], method: str, task: str) -> list[Result]:
    """Return the runs of one method on one task, in order of seed."""
    return sorted((each for each in results if (each.method, each.task) == (method, task)), key=lambda each: each.seed)
