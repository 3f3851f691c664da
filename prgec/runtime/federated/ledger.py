"""The truth about a run of many devices: its steps in a journal, from which every device catches up.

Letters: q queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from prgec.core.contract.arrays import FloatArray
from prgec.core.formats.journal import Journal, JournalWriter, read_journal
from prgec.core.formats.journal_records import HEADER, Header, StateRecord, StepRecord, pack_record
from prgec.errors import DataError, UsageError

# Devices report the hash of their state after every so many steps.
CONFIRM_EVERY = 100


@dataclass(frozen=True, kw_only=True)
class Update:
    """A step as devices apply it.

    Attributes:
        step: Number of the step, from 1.
        lr: Its learning rate.
        g: Its coefficients, f32[q].
    """

    step: int
    lr: float
    g: FloatArray


class Ledger:
    """All steps of a run, on the disk before any device receives them; use as a context manager.

    Args:
        path: The journal; made, or continued where it is of the same run.
        header: Identity of the run.
        block: Steps that are recorded together: a part of a block, left by a process that was killed, is dropped.

    Raises:
        UsageError: If the journal is of another run.
        DataError: If the journal cannot be read.
    """

    def __init__(self, path: Path, header: Header, *, block: int = 1) -> None:
        self.header, self._path = header, path
        self.records: list[StepRecord] = []
        self._states: dict[int, str] = {}
        kept = 0
        if path.exists():
            journal = read_journal(path)
            if journal.header != header:
                raise UsageError("the journal is of another run", where=path, hint="name another file")
            kept = self._continue(journal, block)
        self._updates = [Update(step=each.step, lr=each.lr, g=each.g) for each in self.records]
        self._journal = JournalWriter(path, header, kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.__exit__(kind, error, trace)

    @property
    def num_steps(self) -> int:
        """Steps so far; in a run of rounds, those of empty places included."""
        return len(self._updates)

    def append(self, records: Sequence[StepRecord]) -> list[Update]:
        """Record steps; return them as devices apply them."""
        for record in records:
            self._journal.append(record)
        # A step that a device has and the journal lost would part them for good.
        self._journal.sync()
        updates = [Update(step=each.step, lr=each.lr, g=each.g) for each in records]
        self.records += records
        self._updates += updates
        return updates

    def updates(self, after: int) -> list[Update]:
        """Return the steps after one, for a device that has missed them.

        Raises:
            DataError: If the device has steps that this run has not.
        """
        if not 0 <= after <= self.num_steps:
            raise DataError(
                f"a device has {after} steps, and the run has {self.num_steps}",
                where=self._path,
                hint="the device belongs to another run, or this journal is an old copy",
            )
        return self._updates[after:]

    def confirm(self, step: int, sha256: str, device: str) -> None:
        """Compare the state of a device after a step with that of the first device that confirmed it.

        Raises:
            DataError: If they differ, or there is no such step.
        """
        self.updates(step)
        expected = self.header.start_sha256 if step == 0 else self._states.get(step)
        if expected is None:
            self._states[step] = sha256
            # A journal has the state after its last step alone; those of earlier ones are remembered here.
            if step == self.num_steps:
                self._journal.append(StateRecord(step, sha256))
        elif expected != sha256:
            raise DataError(
                f"the state after step {step} differs from that of other devices",
                where=device,
                hint="it needs the same program, adapter to start from, and all steps",
            )

    def _continue(self, journal: Journal, block: int) -> int:
        """Keep the whole blocks of a journal; return the bytes they take."""
        steps = journal.steps
        last = len(steps) - len(steps) % block
        self.records = steps[:last]
        self._states = {step: sha256 for step, sha256 in journal.states.items() if step <= last}
        kept = [each for each in journal.records if each.step <= last]
        return HEADER.size + sum(len(pack_record(each)) for each in kept)
