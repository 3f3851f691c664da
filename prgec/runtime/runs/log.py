"""A run's files as it goes: metrics for people, the journal for a resumed run. Both or neither get their names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from prgec.core.formats.journal import Journal, JournalWriter, read_journal
from prgec.core.formats.journal_records import EvaluationRecord, Header, Record, StateRecord, StepRecord
from prgec.core.formats.run_folder import (
    BEST_NAME,
    JOURNAL_NAME,
    PARTIAL_JOURNAL_NAME,
    SNAPSHOT_NAME,
    SUMMARY_NAME,
    MetricsWriter,
    RunFolder,
)
from prgec.core.machine.files import rename
from prgec.errors import DataError, UsageError
from prgec.runtime.training.evaluate import Evaluation
from prgec.runtime.training.gradient_trainer import GradientStep
from prgec.runtime.training.prge_trainer import EstimatedStep
from prgec.runtime.training.step import StepResult


class RunLog:
    """Metrics and journal of a run under way; use as a context manager.

    Leaving the block without `commit` keeps both where they hold steps, for `--resume`, and removes them otherwise.

    Args:
        folder: The run folder.
        header: Identity of the run.
        journal: The journal to go on with; None to begin.
        steps: Results of the steps whose records it has.
        on_line: Observes every line of metrics.

    Attributes:
        last_state: Step of the last state the journal has a hash of, -1 for none.
    """

    def __init__(
        self,
        folder: RunFolder,
        header: Header,
        journal: Journal | None,
        steps: Sequence[StepResult] = (),
        on_line: Callable[[Mapping[str, Any]], None] = lambda line: None,
    ) -> None:
        self._folder, self._on_line = folder, on_line
        self._start = time.monotonic()
        known = [] if journal is None else list(_lines_of(journal, steps))
        self._metrics = MetricsWriter(folder, known)
        self._path = folder.file(PARTIAL_JOURNAL_NAME)
        if journal is not None and journal.path != self._path:
            rename(journal.path, self._path)
        self._journal = JournalWriter(self._path, header, journal.good_bytes if journal else 0)
        self._has_steps = journal is not None and bool(journal.steps)
        self.last_state = max(journal.states, default=-1) if journal else -1
        for line in known:
            on_line(line)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.__exit__(kind, error, trace)
        if self._has_steps:
            self._metrics.close()
        else:
            self._path.unlink(missing_ok=True)
            self._metrics.remove()

    def step(self, result: StepResult) -> None:
        """Record one training step."""
        self._journal.append(_record_of(result))
        self._has_steps = True
        self._write({**result.metrics(), "seconds": self._seconds()})

    def evaluation(self, step: int, result: Evaluation) -> None:
        """Record one evaluation after `step` steps."""
        record = EvaluationRecord(step, result.loss, result.accuracy, result.num_examples)
        self._journal.append(record)
        self._write({**_evaluation_line(record), "seconds": self._seconds()})

    def state(self, step: int, sha256: str) -> None:
        """Record the hash of the state after `step` steps, and wait until everything is on the disk."""
        self._journal.append(StateRecord(step, sha256))
        self.last_state = step

    def commit(self) -> None:
        """Give metrics and journal their final names: the run has ended."""
        self._metrics.commit()
        rename(self._path, self._folder.file(JOURNAL_NAME))

    def remove_states(self, *, keeps_snapshot: bool = False) -> None:
        """Remove states on the way, which nothing goes on from once the summary is written.

        Args:
            keeps_snapshot: Whether the last state stays, because the run can go on from nothing else.
        """
        for name in (BEST_NAME,) if keeps_snapshot else (SNAPSHOT_NAME, BEST_NAME):
            self._folder.file(name).unlink(missing_ok=True)

    def _seconds(self) -> float:
        return round(time.monotonic() - self._start, 4)

    def _write(self, line: dict[str, Any]) -> None:
        self._metrics.write(line)
        self._on_line(line)


def _lines_of(journal: Journal, steps: Sequence[StepResult]) -> Iterator[dict[str, Any]]:
    """Yield the metrics of an earlier process. They have no seconds, because they were not timed here."""
    for record in journal.records:
        if isinstance(record, StepRecord):
            yield steps[record.step - 1].metrics()
        elif isinstance(record, EvaluationRecord):
            yield _evaluation_line(record)


def _evaluation_line(record: EvaluationRecord) -> dict[str, Any]:
    return {"step": record.step, "eval_loss": record.loss, "eval_accuracy": record.accuracy}


def _record_of(result: StepResult) -> Record:
    """Return what the journal keeps of a step."""
    if isinstance(result, GradientStep):
        measured, factors = result.recorded()
        return StepRecord.from_gradient_step(step=result.step, lr=result.lr, measured=measured, factors=factors)
    assert isinstance(result, EstimatedStep), "every kind of step needs a kind of record"
    return StepRecord(step=result.step, lr=result.lr, eps=result.eps, losses=result.losses, g=result.g)


def check_nothing_is_lost(folder: RunFolder) -> None:
    """Refuse to begin where an earlier run left steps, finished or not.

    Raises:
        UsageError: With the ways to go on.
    """
    if num_steps := _steps_of(folder.path / PARTIAL_JOURNAL_NAME):
        raise UsageError(
            f"--out holds an unfinished run of {num_steps} steps",
            where=folder.path,
            hint="go on with --resume, or replace it with --force",
        )
    if (folder.path / SUMMARY_NAME).exists() or (folder.path / JOURNAL_NAME).exists():
        raise UsageError(
            f"--out holds a finished run of {_steps_of(folder.path / JOURNAL_NAME)} steps",
            where=folder.path,
            hint=f"name another --out, with --adapter {folder.path} to train on; or replace it with --force",
        )


def _steps_of(path: Path) -> int:
    try:
        return len(read_journal(path).steps) if path.is_file() else 0
    except DataError:  # not even its header was written
        return 0
