"""The journal of a run: what every step measured and applied, in checksummed records that survive a power cut.

With the program and the adapter a run began from, the records (step, lr, g) and one seed rebuild the state after any
step without a forward call. docs/journal.md has the bytes; the C++ driver writes the same.

Letters: q queries, B examples a step.
"""

from __future__ import annotations

import math
import os
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from prgec.errors import DataError
from prgec.machine.files import write_atomic

FloatArray: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]

MAGIC = b"PRGEJRNL"
VERSION = 2
# magic, version, checksum, q, B, seed, steps, lr, eps, schedule, estimator, examples, rows, program, start, max g,
# policies, zero
_HEADER = struct.Struct("<8sIIIIqQdd16s16sII32s32sdII")
_CHECKED_FROM = 16
_MAX_QUERIES = 1 << 16

# Checksum of the rest, kind.
_FRAME = struct.Struct("<II")
_STEP, _EVALUATION, _STATE = 1, 2, 3
_STEP_HEAD = struct.Struct("<Qdd")
_EVALUATION_BODY = struct.Struct("<QddQ")
_STATE_BODY = struct.Struct("<Q32s")

# Records reach the system at once and the disk at least this often, and whenever a state is recorded.
_SYNC_SECONDS = 1.0


@dataclass(frozen=True)
class Header:
    """What a run is: equal headers and equal records are equal runs.

    Attributes:
        q: Queries a step.
        batch_size: B.
        seed: Key of the noise and of the order of examples.
        steps: Steps the run was asked for; the schedule depends on it.
        lr: Learning rate at the start.
        eps: Perturbation scale.
        schedule: Row of the schedule table.
        estimator: Row of the estimator table.
        num_examples: Training examples.
        rows_crc: `prgec.data.rows_file.fingerprint` of the training rows.
        program_sha256: `prgec.formats.adapter.identity` of the program.
        start_sha256: Hash of the masters before the first step.
        max_g: Bound on |g|, 0 for none.
        policies: `prgec.training.limits.Limits.flags`.
    """

    q: int
    batch_size: int
    seed: int
    steps: int
    lr: float
    eps: float
    schedule: str
    estimator: str
    num_examples: int
    rows_crc: int
    program_sha256: str
    start_sha256: str
    max_g: float = 0.0
    policies: int = 0

    def pack(self) -> bytes:
        """Return the header's bytes."""
        names = (self.schedule.encode(), self.estimator.encode())
        hashes = (bytes.fromhex(self.program_sha256), bytes.fromhex(self.start_sha256))
        fields = (
            self.q,
            self.batch_size,
            self.seed,
            self.steps,
            self.lr,
            self.eps,
            *names,
            self.num_examples,
            self.rows_crc,
            *hashes,
            self.max_g,
            self.policies,
            0,
        )
        draft = _HEADER.pack(MAGIC, VERSION, 0, *fields)
        return _HEADER.pack(MAGIC, VERSION, zlib.crc32(draft[_CHECKED_FROM:]), *fields)


@dataclass(frozen=True)
class StepRecord:
    """One training step.

    Attributes:
        step: Number of the step, from 1.
        lr: Learning rate its update is applied with.
        eps: Perturbation scale it measured with.
        losses: Mean over the B examples for each query and sign: f64[q, 2].
        g: Coefficients of its update, as applied: f32[q].
    """

    step: int
    lr: float
    eps: float
    losses: Float64Array
    g: FloatArray


@dataclass(frozen=True)
class EvaluationRecord:
    """One evaluation after `step` steps; `accuracy` is None for an open-ended task."""

    step: int
    loss: float
    accuracy: float | None
    num_examples: int


@dataclass(frozen=True)
class StateRecord:
    """Hash of the masters after `step` steps, written before a snapshot and at the end."""

    step: int
    sha256: str


Record: TypeAlias = StepRecord | EvaluationRecord | StateRecord


@dataclass(frozen=True)
class Journal:
    """A journal as read.

    Attributes:
        path: The file.
        header: What run it is of.
        records: All good records in order.
        good_bytes: Length up to the last good record.
        bad_bytes: Damaged bytes behind it: the tail of a write that was cut off.
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


class JournalWriter:
    """Appends records; each reaches the system at once, and the disk within a second while steps go on.

    Args:
        path: The file.
        header: What run it is of.
        keep_bytes: Length of the good part to append to; 0 starts a new file.
    """

    def __init__(self, path: Path, header: Header, keep_bytes: int = 0) -> None:
        if not keep_bytes:
            # A journal without a whole header never exists.
            write_atomic(path, header.pack())
            keep_bytes = _HEADER.size
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


def pack_record(record: Record) -> bytes:
    """Return a record's bytes."""
    if isinstance(record, StepRecord):
        numbers = np.asarray(record.losses, "<f8").tobytes() + np.asarray(record.g, "<f4").tobytes()
        kind, body = _STEP, _STEP_HEAD.pack(record.step, record.lr, record.eps) + numbers
    elif isinstance(record, EvaluationRecord):
        accuracy = math.nan if record.accuracy is None else record.accuracy
        kind, body = _EVALUATION, _EVALUATION_BODY.pack(record.step, record.loss, accuracy, record.num_examples)
    else:
        kind, body = _STATE, _STATE_BODY.pack(record.step, bytes.fromhex(record.sha256))
    rest = kind.to_bytes(4, "little") + body
    return zlib.crc32(rest).to_bytes(4, "little") + rest


def read_journal(path: Path) -> Journal:
    """Read a journal up to its last good record.

    Raises:
        DataError: If the file is missing, not a journal, of another version, or its header is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the journal: {error.strerror}", where=path) from error
    header = _unpack_header(data, path)
    records, end = [], _HEADER.size
    for record, end in _unpack_records(data, header.q):  # noqa: B007 - the last end is the length of the good part
        records.append(record)
    return Journal(path, header, tuple(records), end, len(data) - end)


def _unpack_header(data: bytes, path: Path) -> Header:
    if data[: len(MAGIC)] != MAGIC or len(data) < _HEADER.size:
        raise DataError("not a journal", where=path, hint="expected the journal of a run folder")
    _, version, crc, *fields = _HEADER.unpack_from(data)
    if version != VERSION:
        raise DataError(f"the journal has version {version}; this prgec reads {VERSION}", where=path)
    if zlib.crc32(data[_CHECKED_FROM : _HEADER.size]) != crc or not 1 <= fields[0] <= _MAX_QUERIES:
        raise DataError("the journal's header is damaged", where=path)
    (
        q,
        batch_size,
        seed,
        steps,
        lr,
        eps,
        schedule,
        estimator,
        num_examples,
        rows_crc,
        program,
        start,
        max_g,
        policies,
        _,
    ) = fields
    try:
        schedule, estimator = (name.rstrip(b"\0").decode("ascii") for name in (schedule, estimator))
    except UnicodeDecodeError as error:
        raise DataError("the journal's header is damaged", where=path) from error
    return Header(
        q,
        batch_size,
        seed,
        steps,
        lr,
        eps,
        schedule,
        estimator,
        num_examples,
        rows_crc,
        program.hex(),
        start.hex(),
        max_g,
        policies,
    )


def _unpack_records(data: bytes, q: int) -> Iterator[tuple[Record, int]]:
    """Yield good records with the place behind each, up to the first one that is not."""
    sizes = {_STEP: _STEP_HEAD.size + 20 * q, _EVALUATION: _EVALUATION_BODY.size, _STATE: _STATE_BODY.size}
    place, last = _HEADER.size, 0
    while place + _FRAME.size <= len(data):
        crc, kind = _FRAME.unpack_from(data, place)
        end = place + _FRAME.size + sizes.get(kind, 0)
        if kind not in sizes or end > len(data) or zlib.crc32(data[place + 4 : end]) != crc:
            return
        record = _unpack_body(kind, data[place + _FRAME.size : end], q)
        expected = last + 1 if isinstance(record, StepRecord) else last
        # What a run that stopped early leaves behind is evaluated last: an earlier state, the best one.
        is_placed = record.step <= last if isinstance(record, EvaluationRecord) else record.step == expected
        if not is_placed or not _is_applicable(record):
            return
        place, last = end, expected
        yield record, end


def _is_applicable(record: Record) -> bool:
    # Drivers record no such step; applying one would ruin every weight.
    return not isinstance(record, StepRecord) or (math.isfinite(record.lr) and bool(np.isfinite(record.g).all()))


def _unpack_body(kind: int, body: bytes, q: int) -> Record:
    if kind == _STEP:
        step, lr, eps = _STEP_HEAD.unpack_from(body)
        losses = np.frombuffer(body, "<f8", 2 * q, _STEP_HEAD.size).reshape(q, 2)
        return StepRecord(step, lr, eps, losses, np.frombuffer(body, "<f4", q, _STEP_HEAD.size + 16 * q).copy())
    if kind == _EVALUATION:
        step, loss, accuracy, num_examples = _EVALUATION_BODY.unpack(body)
        return EvaluationRecord(step, loss, None if math.isnan(accuracy) else accuracy, num_examples)
    step, sha256 = _STATE_BODY.unpack(body)
    return StateRecord(step, sha256.hex())
