"""The journal of a run of many devices is the truth: whole, on the disk, and never rewritten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prgec.core.formats.journal import read_journal
from prgec.core.formats.journal_records import Header, StepRecord
from prgec.errors import DataError, UsageError
from prgec.runtime.federated.ledger import Ledger

HEADER = Header(
    q=2,
    batch_size=2,
    seed=5,
    steps=60,
    lr=0.1,
    eps=0.05,
    schedule="linear",
    estimator="norm",
    num_examples=0,
    rows_crc=0,
    program_sha256="ab" * 32,
    start_sha256="cd" * 32,
)
SHA256 = "12" * 32


def _records(first: int, count: int) -> list[StepRecord]:
    numbers = range(first, first + count)
    return [
        StepRecord(step=n, lr=0.1, eps=0.05, losses=np.full((2, 2), float(n)), g=np.full(2, n, dtype=np.float32))
        for n in numbers
    ]


def test_a_late_confirmation_leaves_the_journal_whole(tmp_path: Path) -> None:
    """A state may follow its own step alone: readers stop at any other."""
    path = tmp_path / "journal.bin"
    with Ledger(path, HEADER) as ledger:
        ledger.append(_records(1, 3))
        ledger.confirm(2, SHA256, "late")
        ledger.append(_records(4, 2))
        ledger.confirm(5, SHA256, "in time")
    journal = read_journal(path)
    assert (len(journal.steps), journal.bad_bytes, journal.states) == (5, 0, {5: SHA256})


def test_states_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    with Ledger(tmp_path / "journal.bin", HEADER) as ledger:
        ledger.append(_records(1, 3))
        ledger.confirm(0, HEADER.start_sha256, "a")
        with pytest.raises(DataError, match=r"after step 0 differs from that of other devices \(b\)"):
            ledger.confirm(0, SHA256, "b")
        ledger.confirm(3, SHA256, "a")
        ledger.confirm(3, SHA256, "b")
        with pytest.raises(DataError, match=r"after step 3 differs from that of other devices \(c\)"):
            ledger.confirm(3, "34" * 32, "c")


def test_a_hash_survives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    with Ledger(path, HEADER) as ledger:
        ledger.append(_records(1, 3))
        ledger.confirm(3, SHA256, "a")
    with Ledger(path, HEADER) as ledger, pytest.raises(DataError, match="after step 3 differs"):
        ledger.confirm(3, "34" * 32, "b")


def test_a_device_that_is_ahead_is_refused(tmp_path: Path) -> None:
    with Ledger(tmp_path / "journal.bin", HEADER) as ledger:
        ledger.append(_records(1, 3))
        assert [each.step for each in ledger.updates(1)] == [2, 3]
        assert ledger.updates(3) == []
        for step in (4, -1):
            with pytest.raises(DataError, match=f"a device has {step} steps, and the run has 3"):
                ledger.updates(step)
        with pytest.raises(DataError, match="a device has 4 steps"):
            ledger.confirm(4, SHA256, "a")


def test_a_part_of_a_block_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    with Ledger(path, HEADER, block=3) as ledger:
        ledger.append(_records(1, 3))
        ledger.confirm(3, SHA256, "a")
        whole = path.read_bytes()
        ledger.append(_records(4, 2))
    with Ledger(path, HEADER, block=3) as ledger:
        assert ledger.num_steps == 3
        assert path.read_bytes() == whole
        ledger.append(_records(4, 3))
    assert len(read_journal(path).steps) == 6


def test_a_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    with Ledger(path, HEADER):
        pass
    with pytest.raises(UsageError, match="the journal is of another run"):
        Ledger(path, replace(HEADER, seed=9))
