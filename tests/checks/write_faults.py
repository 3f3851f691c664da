"""Let one write of a run fail, then the next one: `python tools/faults.py --writes`.

A library that is loaded before the driver makes the n-th write, sync, truncation or rename in the run folder fail with
EIO, as a worn card does. The run has to end with one line that says so, or go on where the call does not matter; and
the resumed run's journal and adapter equal those of a run that nothing happened to, byte for byte.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.checks.fault_cases import Bench, Tally
from tests.checks.fault_drivers import CppDriver, Driver, Process, PythonDriver
from tests.tiny_inputs import make_inputs

_SOURCE = Path(__file__).with_name("failing_writes.c")
_METHODS = (("prge", "norm"), ("exact", "adamw"))
_CASE = "EIO at one write"


@dataclass
class FailingBench(Bench):
    """A run one of whose writes fails.

    Attributes:
        environment: Variables of the next run.
    """

    environment: Mapping[str, str] | None = None

    def start(self, out: Path, *, resume: bool = False, drop: bool = False) -> Process:
        """Start the run in a folder, with what is to fail."""
        os.environ.update(self.environment or {})
        try:
            return super().start(out, resume=resume, drop=drop)
        finally:
            for name in self.environment or {}:
                del os.environ[name]


def build_library(work: Path) -> Path:
    """Build the library that makes writes fail."""
    library = work / "failing_writes.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
    return library


def fail_writes(bench: FailingBench, count: int) -> Tally:
    """Let each write fail once, or `count` of them that are spread over the run."""
    tally, counted = Tally(bench.driver.name, _CASE), bench.work / "count"
    folder = bench.work / "failing"
    settings = {"PRGEC_FAIL_IN": str(folder), "PRGEC_FAIL_COUNT": str(counted)}
    total = _calls_of(bench, folder, counted, settings)
    chosen = range(1, total + 1)
    for number in chosen if total <= count else sorted(bench.rng.sample(chosen, count)):
        counted.unlink(missing_ok=True)
        bench.environment = {**settings, "PRGEC_FAIL_AT": str(number)}
        process = bench.start(folder)
        code = process.wait()
        bench.environment = None
        tally.attempted += 1
        lines = process.said().strip().splitlines()
        is_reported = code == 1 and lines[-1].startswith("error: ") and "Input/output error" in lines[-1]
        if code and not is_reported:
            tally.notes.append(f"write {number} of {total}: exit code {code}: {lines[-1][-120:] if lines else ''}")
            shutil.rmtree(folder, ignore_errors=True)
        elif not folder.exists():
            # The first write of all failed: there is nothing to resume.
            tally.survived += 1
        else:
            bench.check_end(tally, folder)
    return tally


def _calls_of(bench: FailingBench, folder: Path, counted: Path, settings: Mapping[str, str]) -> int:
    """Return how many calls a run makes in its folder."""
    bench.environment = {**settings, "PRGEC_FAIL_AT": "0"}
    if bench.start(folder).wait():
        raise SystemExit("faults: the run fails undisturbed")
    bench.environment = None
    shutil.rmtree(folder)
    (total,) = struct.unpack("l", counted.read_bytes())
    return int(total)


def write_faults(executable: Path, work: Path, count: int, seed: int) -> Iterator[tuple[str, Tally]]:
    """Break both drivers with a program of each kind; yield the rows of the table."""
    os.environ["LD_PRELOAD"] = str(build_library(work))
    with tempfile.TemporaryDirectory() as name, PythonDriver() as python:
        for method, optimizer in _METHODS:
            folder = Path(name) / method
            folder.mkdir()
            inputs = make_inputs(folder, method, optimizer=optimizer)
            drivers: tuple[Driver, ...] = (CppDriver(executable), python)
            for driver in drivers:
                bench = FailingBench(driver, folder, *inputs, random.Random(seed), method != "prge")
                bench.prepare()
                yield f"{method} {optimizer}", fail_writes(bench, count)
                shutil.rmtree(folder / "whole")
