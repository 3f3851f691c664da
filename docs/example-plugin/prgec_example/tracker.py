"""A tracker: `prgec run --log-to lines` writes a line of text into the run's folder for each line of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prgec.runtime.trackers.sink import TrackedRun, scalars


class LinesSink:
    """Writes `lines.txt`."""

    def begin(self, run: TrackedRun) -> None:
        """Make the file; a resumed run sends all its lines again."""
        self._path: Path = run.folder / "lines.txt"
        self._path.write_text(f"{run.name}\n", encoding="utf-8")

    def log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append lines of metrics."""
        with self._path.open("a", encoding="utf-8") as file:
            for line in lines:
                curves = ", ".join(f"{name} {value:.4f}" for name, value in scalars(line).items())
                file.write(f"step {line['step']}: {curves}\n")

    def end(self, summary: Mapping[str, Any]) -> None:
        """Append how the run ended."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{summary.get('steps', 'no')} steps\n")
