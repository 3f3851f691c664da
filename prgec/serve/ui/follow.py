"""A metrics file while it grows: reads what is new, and keeps numbers only."""

from __future__ import annotations

import json
import math
import os
from array import array
from pathlib import Path
from typing import Any

from prgec.core.formats.run_folder import METRICS_NAME, PARTIAL_METRICS_NAME
from prgec.runtime.report.curves import Score

_CHUNK_BYTES = 8 << 20


class Metrics:
    """A run's metrics so far.

    Args:
        folder: The run folder.

    Attributes:
        steps: Number of each step.
        losses: Its loss; not a number where it had none.
        rates: Its learning rate.
        seconds: When it was done; not a number where nobody timed it.
        scores: Results of evaluations.
        num_damaged: Lines that say nothing that can be understood.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clear(None)

    def _clear(self, file: tuple[int, int] | None) -> None:
        self._file, self._offset, self._rest = file, 0, b""
        self.steps, self.losses, self.rates, self.seconds = array("q"), array("d"), array("d"), array("d")
        self.scores: list[Score] = []
        self.num_damaged = 0

    @property
    def version(self) -> tuple[object, ...]:
        """Changes when there is something new."""
        return self._file, self._offset

    def refresh(self) -> None:
        """Read on; from the beginning where the file is another one, or was cut."""
        # A run that ends gives the same file another name; one that begins again has a file beside the old one's.
        for name in (PARTIAL_METRICS_NAME, METRICS_NAME):
            try:
                file = (self._folder / name).open("rb")
            except OSError:
                continue
            with file:
                about = os.fstat(file.fileno())
                if self._file != (about.st_dev, about.st_ino) or about.st_size < self._offset:
                    self._clear((about.st_dev, about.st_ino))
                file.seek(self._offset)
                while data := file.read(_CHUNK_BYTES):
                    self._offset += len(data)
                    self._take(data)
            return
        self._clear(None)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            # Many lines at once are read in half the time; damaged ones are found by reading each.
            found = json.loads(b"[" + b",".join(lines) + b"]")
        except (ValueError, RecursionError):
            found = []
        for place, line in enumerate(lines):
            try:
                self._take_line(found[place] if len(found) == len(lines) else json.loads(line))
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                self.num_damaged += 1

    def _take_line(self, line: dict[str, Any]) -> None:
        step = int(line["step"])
        if "loss" in line:
            loss, rate, seconds = _number(line["loss"]), _number(line.get("lr")), _number(line.get("seconds"))
            self.steps.append(step)
            self.losses.append(loss)
            self.rates.append(rate)
            self.seconds.append(seconds)
        elif "eval_loss" in line:
            accuracy = _number(line.get("eval_accuracy"))
            score = (step, _number(line["eval_loss"]), None if math.isnan(accuracy) else accuracy)
            if math.isfinite(score[1]):
                self.scores.append(score)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
