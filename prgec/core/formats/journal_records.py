"""The records of a journal and their bytes (docs/journal.md): what a run is, and what every step measured and applied.

Letters: q queries, B examples a step.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from prgec.core.contract.arrays import Float64Array, FloatArray
from prgec.errors import DataError

MAGIC = b"PRGEJRNL"
VERSION = 2
# magic, version, checksum, q, B, seed, steps, lr, eps, schedule, estimator, examples, rows, program, start, max g,
# policies, zero
HEADER = struct.Struct("<8sIIIIqQdd16s16sII32s32sdII")
_CHECKED_FROM = 16
_MAX_QUERIES = 1 << 16

# Checksum of the rest, kind.
_FRAME = struct.Struct("<II")
_STEP, _EVALUATION, _STATE = 1, 2, 3
_STEP_HEAD = struct.Struct("<Qdd")
_EVALUATION_BODY = struct.Struct("<QddQ")
_STATE_BODY = struct.Struct("<Q32s")


@dataclass(frozen=True)
class Header:
    """The identity of a run: equal headers and equal records are equal runs.

    Attributes:
        q: Queries a step.
        batch_size: B.
        seed: Key of the noise and of the order of examples.
        steps: Requested number of steps; the schedule depends on it.
        lr: Learning rate at the start.
        eps: Perturbation scale.
        schedule: Row of the schedule table.
        estimator: Row of the estimator table.
        num_examples: Training examples.
        rows_crc: `prgec.core.data.rows_file.fingerprint` of the training rows.
        program_sha256: `prgec.core.formats.adapter.identity` of the program.
        start_sha256: Hash of the masters before the first step.
        max_g: Bound on |g|, 0 for none.
        policies: `prgec.runtime.training.limits.Limits.flags`.
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
        numbers = (self.q, self.batch_size, self.seed, self.steps, self.lr, self.eps)
        names = (self.schedule.encode(), self.estimator.encode())
        hashes = (bytes.fromhex(self.program_sha256), bytes.fromhex(self.start_sha256))
        fields = (*numbers, *names, self.num_examples, self.rows_crc, *hashes, self.max_g, self.policies, 0)
        draft = HEADER.pack(MAGIC, VERSION, 0, *fields)
        return HEADER.pack(MAGIC, VERSION, zlib.crc32(draft[_CHECKED_FROM:]), *fields)


@dataclass(frozen=True, kw_only=True)
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

    @classmethod
    def from_gradient_step(cls, *, step: int, lr: float, measured: Float64Array, factors: FloatArray) -> StepRecord:
        """Return the record of a step that computed its gradient: it perturbed nothing, and has eps 0.

        Args:
            step: Its number.
            lr: Its learning rate.
            measured: Numbers in the place of the losses, f64[q, 2]; their meaning is that of the kind of step.
            factors: Numbers in the place of the coefficients, f32[q], the norm of its gradient first.
        """
        return cls(step=step, lr=lr, eps=0.0, losses=measured, g=factors)


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


def unpack_header(data: bytes, path: Path) -> Header:
    """Return the header a file begins with.

    Raises:
        DataError: If it has none, or one of another version or damaged.
    """
    if data[: len(MAGIC)] != MAGIC or len(data) < HEADER.size:
        raise DataError("not a journal", where=path, hint="expected the journal of a run folder")
    _, version, crc, *fields = HEADER.unpack_from(data)
    if version != VERSION:
        raise DataError(f"the journal has version {version}; this prgec reads {VERSION}", where=path)
    if zlib.crc32(data[_CHECKED_FROM : HEADER.size]) != crc or not 1 <= fields[0] <= _MAX_QUERIES:
        raise DataError("the journal's header is damaged", where=path)
    numbers, names, data_of, hashes, limits = fields[:6], fields[6:8], fields[8:10], fields[10:12], fields[12:14]
    try:
        decoded = [name.rstrip(b"\0").decode("ascii") for name in names]
    except UnicodeDecodeError as error:
        raise DataError("the journal's header is damaged", where=path) from error
    return Header(*numbers, *decoded, *data_of, *(each.hex() for each in hashes), *limits)


def unpack_records(data: bytes, q: int) -> Iterator[tuple[Record, int]]:
    """Yield good records, each with the offset of its end, up to the first bad one."""
    sizes = {_STEP: _STEP_HEAD.size + 20 * q, _EVALUATION: _EVALUATION_BODY.size, _STATE: _STATE_BODY.size}
    place, last = HEADER.size, 0
    while place + _FRAME.size <= len(data):
        crc, kind = _FRAME.unpack_from(data, place)
        end = place + _FRAME.size + sizes.get(kind, 0)
        if kind not in sizes or end > len(data) or zlib.crc32(data[place + 4 : end]) != crc:
            return
        record = _unpack_body(kind, data[place + _FRAME.size : end], q)
        expected = last + 1 if isinstance(record, StepRecord) else last
        # A run that stopped early evaluates last the state that it leaves: an earlier one, the best.
        is_placed = record.step <= last if isinstance(record, EvaluationRecord) else record.step == expected
        if not is_placed or not _is_applicable(record):
            return
        place, last = end, expected
        yield record, end


def _is_applicable(record: Record) -> bool:
    # Drivers record no other step; applying one would ruin every weight. One that perturbed nothing has a norm there,
    # which nobody applies.
    if not isinstance(record, StepRecord):
        return True
    return math.isfinite(record.lr) and (record.eps == 0 or bool(np.isfinite(record.g).all()))


def _unpack_body(kind: int, body: bytes, q: int) -> Record:
    if kind == _STEP:
        step, lr, eps = _STEP_HEAD.unpack_from(body)
        losses = np.frombuffer(body, "<f8", 2 * q, _STEP_HEAD.size).reshape(q, 2)
        return StepRecord(
            step=step, lr=lr, eps=eps, losses=losses, g=np.frombuffer(body, "<f4", q, _STEP_HEAD.size + 16 * q).copy()
        )
    if kind == _EVALUATION:
        step, loss, accuracy, num_examples = _EVALUATION_BODY.unpack(body)
        return EvaluationRecord(step, loss, None if math.isnan(accuracy) else accuracy, num_examples)
    step, sha256 = _STATE_BODY.unpack(body)
    return StateRecord(step, sha256.hex())
