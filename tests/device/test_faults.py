"""A few of the faults of `make faults`: nothing is lost, whatever a run is broken by."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prgec.core.formats.journal import read_journal
from tests.checks.fault_cases import Bench, Tally, run_cases
from tests.checks.fault_drivers import CppDriver, Driver, PythonDriver
from tests.checks.faults import table, workplace
from tests.tiny_inputs import write_rows

# Steps of the second are made from rows, so that a resumed run takes some again. Nothing but the driver keeps the state
# of the last two.
SLOW = [("Python", "exact"), *((driver, name) for name in ("host", "host-exact") for driver in ("C++", "Python"))]
KINDS = [
    ("C++", "portable"),
    ("Python", "portable"),
    ("C++", "exact"),
    *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda each: "-".join(each))
def bench(request: pytest.FixtureRequest, executable: Path, program: Callable[[str], Path]) -> Iterator[Bench]:
    with workplace() as work, PythonDriver() as python:
        kind, name = request.param
        copy = Path(shutil.copy(program(name), work))
        driver: Driver = python if kind == "Python" else CppDriver(shutil.copy(executable, work))
        rows, eval_rows = write_rows(work / "rows.bin", copy, 5), write_rows(work / "eval.bin", copy, 3)
        bench = Bench(driver, work, copy, rows, eval_rows, random.Random(1), "exact" in name)
        bench.prepare()
        yield bench


def test_nothing_is_lost(bench: Bench) -> None:
    tallies = run_cases(bench, kills=4, others=1)
    assert all(tally.is_good for tally in tallies), table(tallies)
    assert len(tallies) >= 5
    assert sum(tally.attempted for tally in tallies) >= 6


def test_the_harness_sees_what_is_lost(bench: Bench) -> None:
    """What would a run that lost its last step look like?"""
    folder = bench.work / "tampered"
    shutil.copytree(bench.work / "whole", folder)
    steps = len(read_journal(folder / "journal.bin").steps)
    data = (folder / "adapter.safetensors").read_bytes()
    (folder / "adapter.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    tally = Tally("", "")
    bench.check_kept(tally, folder, steps + 1)
    bench.check_end(tally, folder)
    assert (tally.steps_lost, tally.mismatches, tally.is_good) == (1, 1, False)
