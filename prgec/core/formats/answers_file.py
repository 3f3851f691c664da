"""The answers of a run and their rewards, one line a call of a step: for people, and for a run that goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prgec.errors import DataError

_KEY = ("step", "call")


class AnswersFile:
    """Appends lines, each on the disk's cache before the step is taken.

    Args:
        path: The file; made when the first line is written.
        resume: Whether lines that are there stay; a last line that was cut is removed.

    Raises:
        DataError: If the file cannot be read.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        self._known: dict[tuple[int, int], list[dict[str, Any]]] = {}
        if resume and path.is_file():
            self._read()
        else:
            path.unlink(missing_ok=True)

    def rewards(self, step: int, call: int, ids: Sequence[Sequence[int]]) -> list[float] | None:
        """Return the rewards of a call as they were; None if it is new, or its answers are others."""
        found = self._known.get((step, call))
        if found is None or [each["ids"] for each in found] != [list(each) for each in ids]:
            return None
        return [each["reward"] for each in found]

    def answers(self, step: int, call: int) -> list[dict[str, Any]] | None:
        """Return `prompt`, `ids`, `reward` and `loss` of the answers of a call; None if the file has none."""
        return self._known.get((step, call))

    def append(self, step: int, call: int, answers: Sequence[dict[str, Any]]) -> None:
        """Write a call: `prompt`, `ids`, `text`, `reward` and, if it is known, `loss` of each answer."""
        line = json.dumps({"step": step, "call": call, "answers": list(answers)}, allow_nan=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _read(self) -> None:
        raw = self._path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                document = json.loads(line)
                step, call = (int(document[name]) for name in _KEY)
                self._known[step, call] = [
                    {
                        "prompt": int(each["prompt"]),
                        "ids": list(map(int, each["ids"])),
                        "reward": math.nan if each["reward"] is None else float(each["reward"]),
                        "loss": float(each.get("loss", math.nan)),
                    }
                    for each in document["answers"]
                ]
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    "the file of answers is damaged", where=f"{self._path}, line {number}", hint="remove it"
                ) from error
        if len(whole) < len(raw):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))
