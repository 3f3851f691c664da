"""The journal of a run: what every step measured and applied, in checksummed records that survive a power cut.

With the program and the adapter a run began from, the records (step, lr, g) and one seed rebuild the state after any
step without a forward call. docs/journal.md has the bytes; the C++ driver writes the same.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from prgec.core.formats.journal_records import (
    HEADER,
    Header,
    Record,
    StateRecord,
    StepRecord,
    pack_record,
    unpack_header,
    unpack_records,
)
from prgec.core.machine.files import write_atomic
from prgec.errors import DataError

# Records reach the system at once and the disk at least this often, and whenever a state is recorded.
_SYNC_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Journal:
    """A journal as read.

    Attributes:
        path: The file.
        header: Identity of the run.
        records: All good records in order.
        good_bytes: Length up to the last good record.
        bad_bytes: Damaged bytes after it: the tail of a write that was cut off.
    """

    path: Path
    header: Header
    records: tuple[Record, ...]
    good_bytes: int
    bad_bytes: int

    @property
    def steps(self) -> list[StepRecord]:
        """Return the records of steps 1, 2, ..."""
        return [record for record in self.records if isinstance(record, StepRecord)]

    @property
    def states(self) -> dict[int, str]:
        """Return the recorded hashes by step."""
        return {record.step: record.sha256 for record in self.records if isinstance(record, StateRecord)}

    def until(self, step: int) -> Journal:
        """Return the part up to the recorded state after `step` steps; before the first step for 0."""
        kept: list[Record] = []
        for record in self.records:
            if step == 0 and isinstance(record, StepRecord):
                break
            kept.append(record)
            if step and isinstance(record, StateRecord) and record.step == step:
                break
        size = HEADER.size + sum(len(pack_record(record)) for record in kept)
        return Journal(
            path=self.path, header=self.header, records=tuple(kept), good_bytes=size, bad_bytes=self.bad_bytes
        )


class JournalWriter:
    """Appends records; each reaches the system at once, and the disk within a second while steps go on.

    Args:
        path: The file.
        header: Identity of the run.
        keep_bytes: Length of the good part to append to; 0 starts a new file.
    """

    def __init__(self, path: Path, header: Header, keep_bytes: int = 0) -> None:
        if not keep_bytes:
            # A journal without a whole header never exists.
            write_atomic(path, header.pack())
            keep_bytes = HEADER.size
        self._file = path.open("r+b", buffering=0)
        self._file.truncate(keep_bytes)
        self._file.seek(keep_bytes)
        self.sync()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, record: Record) -> None:
        """Append one record.

        Raises:
            OSError: If the disk does not take it; what was written before stays good.
        """
        self._write(pack_record(record))
        if isinstance(record, StateRecord) or time.monotonic() - self._last_sync >= _SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        os.fsync(self._file.fileno())
        self._last_sync = time.monotonic()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) or 0 :]


def read_journal(path: Path) -> Journal:
    """Read a journal up to its last good record.

    Raises:
        DataError: If the file is missing, not a journal, of another version, or its header is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the journal: {error.strerror}", where=path) from error
    header = unpack_header(data, path)
    records, end = [], HEADER.size
    for record, end in unpack_records(data, header.q):  # noqa: B007 - the last end is the length of the good part
        records.append(record)
    return Journal(path=path, header=header, records=tuple(records), good_bytes=end, bad_bytes=len(data) - end)
