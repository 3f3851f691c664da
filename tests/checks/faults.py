"""Break runs as a phone does, and check that nothing is lost: `make faults`.

    python tools/faults.py [--method exact] [--kills 200] [--driver PRGE_TRAIN] [--seed 0]

Both drivers train a tiny program and are killed (SIGKILL) at random times, over and over until the run is complete;
interrupted, suspended, starved of disk space, and locked out of their folder. After each, no step that a driver had
told of may be missing, and the resumed run's journal and adapter must equal those of a run that nothing happened to.
The exit code is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from prgec.contract.names import TRAINING_METHODS
from tests.checks.fault_cases import Bench, Tally, run_cases
from tests.checks.fault_drivers import CppDriver, PythonDriver
from tests.tiny_inputs import make_inputs


def build_driver(work: Path) -> Path:
    """Build prge_train as its README says, quickly rather than fast."""
    from prgec.device.emit import emit_driver

    folder = work / "driver"
    emit_driver(folder)
    for command in (
        ["cmake", "--preset", "host", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"],
        ["cmake", "--build", "--preset", "host", "-j2"],
    ):
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "build" / "host" / "prge_train"


def table(tallies: list[Tally]) -> str:
    """Return the table people read."""
    lines = [f"{'driver':8}{'case':28}{'survived':>14}{'steps lost':>12}{'mismatches':>12}"]
    for t in tallies:
        lines.append(
            f"{t.driver:8}{t.case:28}{f'{t.survived} / {t.attempted}':>14}{t.steps_lost:>12}{t.mismatches:>12}"
        )
        lines += [f"        {note}" for note in t.notes[:3]]
    return "\n".join(lines)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """Make a folder every user can reach."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        work = Path(name)
        work.chmod(0o755)
        yield work


def main() -> int:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="kills, half of them for each driver [200]")
    parser.add_argument("--others", type=int, default=10, help="times to do each of the other things [10]")
    parser.add_argument("--method", choices=TRAINING_METHODS, default="prge", help="how the program trains [prge]")
    parser.add_argument("--driver", type=Path, help="a built prge_train [build one]")
    parser.add_argument("--seed", type=int, default=0, help="of the random times [0]")
    options = parser.parse_args()
    with workplace() as work, PythonDriver() as python:
        inputs = make_inputs(work, options.method)
        executable = work / "prge_train"
        shutil.copy(options.driver or build_driver(work), executable)
        tallies = []
        for driver in (CppDriver(executable), python):
            bench = Bench(driver, work, *inputs, random.Random(options.seed), options.method != "prge")
            bench.prepare()
            tallies += run_cases(bench, options.kills // 2, options.others)
            shutil.rmtree(work / "whole")
    print(table(tallies))
    if not any(t.case == "disk full" for t in tallies):
        print("disk full: not tried, this user may not mount a tmpfs")
    return 0 if all(t.is_good for t in tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
