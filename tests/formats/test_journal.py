"""A journal gives back what was written, as documented byte by byte, up to the first record that is not whole."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from io import FileIO
from pathlib import Path

import numpy as np
import pytest

from prgec.core.formats.journal import Journal, JournalWriter, read_journal
from prgec.core.formats.journal_records import EvaluationRecord, Header, Record, StateRecord, StepRecord, pack_record
from prgec.errors import DataError

HEADER = Header(
    q=2,
    batch_size=3,
    seed=-5,
    steps=9,
    lr=0.003,
    eps=0.01,
    schedule="linear",
    estimator="std",
    num_examples=7,
    rows_crc=0xDEADBEEF,
    program_sha256="ab" * 32,
    start_sha256="cd" * 32,
    max_g=4.5,
    policies=3,
)
HEADER_BYTES = 176


def _step(number: int) -> StepRecord:
    rng = np.random.default_rng(number)
    return StepRecord(
        step=number, lr=0.1 / number, eps=0.01, losses=rng.standard_normal((2, 2)), g=rng.standard_normal(2, np.float32)
    )


RECORDS: tuple[Record, ...] = (
    EvaluationRecord(0, 2.5, 0.5, 4),
    _step(1),
    _step(2),
    EvaluationRecord(2, 2.25, None, 4),
    StateRecord(2, "ef" * 32),
    _step(3),
)


def _write(path: Path, records: tuple[Record, ...] = RECORDS) -> Path:
    with JournalWriter(path, HEADER) as writer:
        for record in records:
            writer.append(record)
    return path


def _assert_equal(found: tuple[Record, ...], expected: tuple[Record, ...]) -> None:
    assert list(map(pack_record, found)) == list(map(pack_record, expected))


def _read(path: Path, data: bytes) -> Journal:
    path.write_bytes(data)
    return read_journal(path)


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    return _write(tmp_path / "j").read_bytes()


def test_round_trip(tmp_path: Path) -> None:
    journal = read_journal(_write(tmp_path / "j"))
    assert journal.header == HEADER
    _assert_equal(journal.records, RECORDS)
    assert [record.step for record in journal.steps] == [1, 2, 3]
    assert journal.states == {2: "ef" * 32}
    assert (journal.good_bytes, journal.bad_bytes) == ((tmp_path / "j").stat().st_size, 0)
    evaluation = journal.records[3]
    assert isinstance(evaluation, EvaluationRecord) and evaluation.accuracy is None


@pytest.mark.parametrize(("step", "kept"), [(0, 1), (2, 5), (3, 6)], ids=["nothing", "a state", "all"])
def test_the_part_until_a_step_is_a_journal_of_its_own(tmp_path: Path, step: int, kept: int) -> None:
    """Appended to, it goes on as if the rest had never been written; a step without a state keeps all."""
    whole = read_journal(_write(tmp_path / "j"))
    part = whole.until(step)
    _assert_equal(part.records, RECORDS[:kept])
    assert (part.header, part.bad_bytes) == (HEADER, 0)
    with JournalWriter(tmp_path / "j", HEADER, keep_bytes=part.good_bytes) as writer:
        writer.append(_step(step + 1))
    _assert_equal(read_journal(tmp_path / "j").records, (*RECORDS[:kept], _step(step + 1)))


def test_layout_is_the_documented_one(data: bytes) -> None:
    assert data[:8] == b"PRGEJRNL"
    assert struct.unpack_from("<II", data, 8) == (2, zlib.crc32(data[16:176]))
    assert struct.unpack_from("<IIqQdd", data, 16) == (2, 3, -5, 9, 0.003, 0.01)
    assert (data[56:72], data[72:88]) == (b"linear" + bytes(10), b"std" + bytes(13))
    assert struct.unpack_from("<II", data, 88) == (7, 0xDEADBEEF)
    assert (data[96:128], data[128:160]) == (b"\xab" * 32, b"\xcd" * 32)
    assert struct.unpack_from("<dII", data, 160) == (4.5, 3, 0)
    evaluation, step = data[176:216], data[216:288]
    assert struct.unpack("<IIQddQ", evaluation) == (zlib.crc32(evaluation[4:]), 2, 0, 2.5, 0.5, 4)
    expected = _step(1)
    assert struct.unpack("<IIQdd4d2f", step) == (
        zlib.crc32(step[4:]),
        1,
        1,
        0.1,
        0.01,
        *expected.losses.reshape(-1).tolist(),
        *expected.g.tolist(),
    )


def test_every_cut_keeps_the_whole_records(tmp_path: Path, data: bytes) -> None:
    ends = [HEADER_BYTES]
    for record in RECORDS:
        ends.append(ends[-1] + len(pack_record(record)))
    for length in range(HEADER_BYTES, len(data) + 1):
        journal = _read(tmp_path / "cut", data[:length])
        whole = sum(end <= length for end in ends) - 1
        _assert_equal(journal.records, RECORDS[:whole])
        assert (journal.good_bytes, journal.bad_bytes) == (ends[whole], length - ends[whole])


def test_every_changed_byte_ends_the_journal_there(tmp_path: Path, data: bytes) -> None:
    place = HEADER_BYTES
    for number, record in enumerate(RECORDS):
        for byte in range(len(pack_record(record))):
            changed = bytearray(data)
            changed[place + byte] ^= 0x04
            _assert_equal(_read(tmp_path / "changed", bytes(changed)).records, RECORDS[:number])
        place += len(pack_record(record))


@pytest.mark.parametrize("place", range(HEADER_BYTES))
def test_a_damaged_header_is_refused(tmp_path: Path, data: bytes, place: int) -> None:
    changed = bytearray(data)
    changed[place] ^= 0x04
    with pytest.raises(DataError):
        _read(tmp_path / "changed", bytes(changed))


@pytest.mark.parametrize("length", [0, 8, HEADER_BYTES - 1])
def test_a_short_header_is_refused(tmp_path: Path, data: bytes, length: int) -> None:
    with pytest.raises(DataError, match="not a journal"):
        _read(tmp_path / "cut", data[:length])


@pytest.mark.parametrize(
    "record",
    [
        _step(5),
        _step(3),
        replace(_step(4), g=np.array([np.nan, 0], np.float32)),
        replace(_step(4), lr=np.inf),
        StateRecord(2, "00" * 32),
        EvaluationRecord(4, 1.0, None, 1),
    ],
    ids=["gap", "again", "nan", "lr", "old state", "early evaluation"],
)
def test_a_record_that_makes_no_sense_ends_the_journal(tmp_path: Path, record: Record) -> None:
    journal = read_journal(_write(tmp_path / "j", (*RECORDS, record, _step(4))))
    _assert_equal(journal.records, RECORDS)


def test_appending_cuts_the_damaged_tail(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "torn"
    path.write_bytes(data[:-3])
    journal = read_journal(path)
    with JournalWriter(path, HEADER, journal.good_bytes) as writer:
        writer.append(_step(3))
    assert path.read_bytes() == data


def test_states_reach_the_disk_at_once_and_steps_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, now = [], [100.0]
    monkeypatch.setattr("prgec.core.formats.journal.os.fsync", synced.append)
    monkeypatch.setattr("prgec.core.formats.journal.time.monotonic", lambda: now[0])
    with JournalWriter(tmp_path / "j", HEADER) as writer:
        synced.clear()
        counts = []
        for record, seconds in ((_step(1), 0.5), (StateRecord(1, "ef" * 32), 0.0), (_step(2), 0.99), (_step(3), 0.01)):
            now[0] += seconds
            writer.append(record)
            counts.append(len(synced))
    assert counts == [0, 1, 1, 2]


def test_a_disk_that_takes_little_at_a_time_gets_all(tmp_path: Path, data: bytes) -> None:
    class Slow:
        """A file that takes three bytes a call."""

        def __init__(self, file: FileIO) -> None:
            self._file = file

        def write(self, view: memoryview) -> int:
            return self._file.write(view[:3])

        def __getattr__(self, name: str) -> object:
            return getattr(self._file, name)

    with JournalWriter(tmp_path / "j", HEADER) as writer:
        writer._file = Slow(writer._file)  # type: ignore[assignment]
        for record in RECORDS:
            writer.append(record)
    assert (tmp_path / "j").read_bytes() == data


def test_a_missing_journal_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the journal: No such file"):
        read_journal(tmp_path / "none")


@pytest.mark.parametrize(("q", "is_known"), [(0, False), (1, True), (1 << 16, True), ((1 << 16) + 1, False)])
def test_headers_have_a_number_of_queries_that_programs_have(tmp_path: Path, q: int, is_known: bool) -> None:
    data = replace(HEADER, q=q).pack()
    if is_known:
        assert _read(tmp_path / "j", data).header.q == q
    else:
        with pytest.raises(DataError, match="damaged"):
            _read(tmp_path / "j", data)


def test_headers_without_limits_have_none() -> None:
    assert (Header.max_g, Header.policies) == (0.0, 0)
