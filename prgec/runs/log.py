"""What a run writes as it goes: metrics for people, the journal for a resumed run. Both or neither get their names."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import TracebackType

import numpy as np

from prgec.contract.sums import ordered_mean
from prgec.errors import DataError, UsageError
from prgec.formats.journal import (
    EvaluationRecord,
    Header,
    Journal,
    JournalWriter,
    Record,
    StateRecord,
    StepRecord,
    read_journal,
)
from prgec.formats.run_folder import JOURNAL_NAME, PARTIAL_JOURNAL_NAME, SNAPSHOT_NAME, MetricsWriter, RunFolder
from prgec.machine.files import rename
from prgec.training.estimators import Estimator, find_estimator
from prgec.training.evaluate import Evaluation
from prgec.training.limits import intervention
from prgec.training.trainer import StepResult


class RunLog:
    """Metrics and journal of a run under way; use as a context manager.

    Leaving the block without `commit` keeps a journal that holds steps, for `--resume`, and removes everything else.

    Args:
        folder: The run folder.
        header: What run it is.
        journal: The journal to go on with; None to begin.
        eps: Perturbation scale, for the records.

    Attributes:
        last_state: Step of the last state the journal has a hash of, -1 for none.
    """

    def __init__(self, folder: RunFolder, header: Header, journal: Journal | None, eps: float) -> None:
        self._folder = folder
        self._eps = eps
        self._estimator: Estimator = find_estimator(header.estimator)
        self._start = time.monotonic()
        self._metrics = MetricsWriter(folder)
        self._path = folder.file(PARTIAL_JOURNAL_NAME)
        if journal is not None and journal.path != self._path:
            rename(journal.path, self._path)
        self._journal = JournalWriter(self._path, header, journal.good_bytes if journal else 0)
        self._has_steps = False
        self.last_state = max(journal.states, default=-1) if journal else -1
        for record in journal.records if journal else ():
            self._note(record)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.__exit__(kind, error, trace)
        if not self._has_steps:
            self._path.unlink(missing_ok=True)
        self._metrics.__exit__(kind, error, trace)

    def step(self, result: StepResult) -> None:
        """Record one training step."""
        self._add(StepRecord(result.step, result.lr, self._eps, result.losses, result.g))

    def evaluation(self, step: int, result: Evaluation) -> None:
        """Record one evaluation after `step` steps."""
        self._add(EvaluationRecord(step, result.loss, result.accuracy, result.num_examples))

    def state(self, step: int, sha256: str) -> None:
        """Record the hash of the state after `step` steps, and wait until everything is on the disk."""
        self._journal.append(StateRecord(step, sha256))
        self.last_state = step

    def commit(self) -> None:
        """Give metrics and journal their final names: the run has ended."""
        self._metrics.commit()
        rename(self._path, self._folder.file(JOURNAL_NAME))
        self._folder.file(SNAPSHOT_NAME).unlink(missing_ok=True)

    def _add(self, record: Record) -> None:
        self._journal.append(record)
        self._note(record, seconds=round(time.monotonic() - self._start, 4))

    def _note(self, record: Record, **seconds: float) -> None:
        """Write the line of a record; steps that were not timed here have no seconds."""
        if isinstance(record, StepRecord):
            self._has_steps = True
            done = intervention(record.losses, record.g, record.eps, self._estimator)
            self._metrics.write(
                step=record.step,
                loss=_number(mean_loss(record)),
                lr=record.lr,
                g=record.g.tolist(),
                **({"limited": done} if done else {}),
                **seconds,
            )
        elif isinstance(record, EvaluationRecord):
            self._metrics.write(step=record.step, eval_loss=record.loss, eval_accuracy=record.accuracy, **seconds)


def mean_loss(record: StepRecord) -> float:
    """Return the mean over all rows of a step; not finite where a loss was not."""
    with np.errstate(invalid="ignore"):
        return float(ordered_mean(record.losses.reshape(-1)))


def _number(value: float) -> float | None:
    # JSON has no other numbers.
    return value if math.isfinite(value) else None


def check_nothing_is_lost(folder: RunFolder) -> None:
    """Refuse to begin where an unfinished run left steps behind.

    Raises:
        UsageError: Saying how to go on with it.
    """
    path: Path = folder.path / PARTIAL_JOURNAL_NAME
    if not path.is_file():
        return
    try:
        num_steps = len(read_journal(path).steps)
    except DataError:  # not even its header was written
        return
    if num_steps:
        raise UsageError(
            f"--out holds an unfinished run of {num_steps} steps",
            where=folder.path,
            hint="go on with --resume, or discard it with --force",
        )
