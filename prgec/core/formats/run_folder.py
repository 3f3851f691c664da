"""The folder of a run: which one, whether it may be used, and its files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.core.machine.files import is_scratch_of, rename, write_atomic
from prgec.errors import UsageError

SUMMARY_NAME = "run.json"
# The options of the run: `prgec run -c` repeats it.
CONFIG_NAME = "run.toml"
METRICS_NAME = "metrics.jsonl"
ADAPTER_NAME = "adapter.safetensors"
PLOT_NAME = "plot.png"
# Metrics grow under this name, where they can be followed, and get their own when the run ends.
PARTIAL_METRICS_NAME = "metrics.partial.jsonl"
# Grows and ends like the metrics (docs/journal.md).
JOURNAL_NAME = "journal.bin"
PARTIAL_JOURNAL_NAME = "journal.partial.bin"
# The state of some step of a run that has not ended.
SNAPSHOT_NAME = "snapshot.safetensors"
# The state that scored best so far, in a run that may stop early.
BEST_NAME = "best.safetensors"
# Losses of answers before the first step, in a run of an objective that compares with them.
REFERENCE_NAME = "reference.safetensors"
# Sampled answers and their rewards, in a run by rewards.
ANSWERS_NAME = "answers.jsonl"
# The page that `prgec report` makes from the other files.
REPORT_NAME = "report.html"
# Present where a run compiled its own program.
PROGRAM_NAME = "program.pte"
# A folder: what TensorBoard reads.
TENSORBOARD_NAME = "tensorboard"
_OURS = {
    SUMMARY_NAME,
    CONFIG_NAME,
    METRICS_NAME,
    ADAPTER_NAME,
    PLOT_NAME,
    PARTIAL_METRICS_NAME,
    PROGRAM_NAME,
    JOURNAL_NAME,
    PARTIAL_JOURNAL_NAME,
    SNAPSHOT_NAME,
    BEST_NAME,
    REFERENCE_NAME,
    ANSWERS_NAME,
    REPORT_NAME,
    TENSORBOARD_NAME,
}
DEFAULT_PARENT = Path("runs")


def task_of(adapter: Path) -> str:
    """Return the task of the rows that an adapter learnt from, as its run folder has it; empty where there is none."""
    folder = adapter if adapter.is_dir() else adapter.parent
    try:
        summary = json.loads((folder / SUMMARY_NAME).read_bytes())
    except (OSError, ValueError):
        return ""
    task = summary.get("task") if isinstance(summary, dict) else None
    return task if isinstance(task, str) else ""


def journal_of(folder: Path) -> Path:
    """Return the journal of a run: that of a whole one, or of one that has not ended."""
    whole = folder / JOURNAL_NAME
    return whole if whole.exists() else folder / PARTIAL_JOURNAL_NAME


@dataclass(frozen=True)
class RunFolder:
    """A folder that is ours to write.

    Attributes:
        path: The folder; made when the first file is written.
    """

    path: Path

    @classmethod
    def choose(cls, out: Path | None, stem: str, *, force: bool) -> RunFolder:
        """Return the folder the user named, or the first free `runs/<stem>-<n>`.

        A folder of an earlier run is used again; one with other content only with `force`. Only files with the names
        of this module are ever touched.

        Raises:
            UsageError: If the path is a file or holds something else.
        """
        if out is None:
            numbers = range(1, 1_000_000)
            return cls(next(p for n in numbers if not (p := DEFAULT_PARENT / f"{stem}-{n}").exists()))
        if out.exists() and not out.is_dir():
            raise UsageError("--out is a file", where=out, hint="name a folder")
        foreign = sorted(p.name for p in out.iterdir() if not _is_ours(p.name)) if out.is_dir() else []
        if foreign and not force:
            raise UsageError(
                f"--out holds {foreign[0]}, which is not from a run",
                where=out,
                hint="name another folder, or add --force",
            )
        return cls(out)

    def file(self, name: str) -> Path:
        """Return the path of one of our files, with the folder made."""
        self.path.mkdir(parents=True, exist_ok=True)
        return self.path / name

    def sweep(self) -> None:
        """Remove the partial files of a process that was killed while it wrote them. Only while holding the folder."""
        for path in self.path.iterdir():
            if path.name not in _OURS and _is_ours(path.name):
                path.unlink()

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `run.json`, last of all: its presence says that the run's other files are complete."""
        write_atomic(self.file(SUMMARY_NAME), (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode())


def _is_ours(name: str) -> bool:
    return name in _OURS or any(is_scratch_of(name, target) for target in _OURS)


class MetricsWriter:
    """Appends one JSON object a line, flushed at once; `commit` gives the file its final name.

    Args:
        folder: The run folder.
        lines: Lines to begin with. A reader sees those of an earlier process until all of these are written.
    """

    def __init__(self, folder: RunFolder, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        self._folder = folder
        self._path = folder.file(PARTIAL_METRICS_NAME)
        write_atomic(self._path, "".join(map(_line, lines)).encode())
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, values: Mapping[str, Any]) -> None:
        """Append one line."""
        self._file.write(_line(values))
        self._file.flush()

    def commit(self) -> None:
        """Make what was written `metrics.jsonl`."""
        self._file.flush()
        rename(self._path, self._folder.file(METRICS_NAME))

    def close(self) -> None:
        """Keep what was written, under its present name."""
        self._file.close()

    def remove(self) -> None:
        """Remove what was written, and the folder if nothing else is in it."""
        self._file.close()
        self._path.unlink(missing_ok=True)
        if not any(self._folder.path.iterdir()):
            self._folder.path.rmdir()


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"
