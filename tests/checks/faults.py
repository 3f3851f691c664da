"""Break runs as a phone does, and check that nothing is lost: `make faults`.

    python tools/faults.py [--method exact --optimizer adamw] [--state host] [--kills 200] [--driver PRGE_TRAIN]
    python tools/faults.py --side [--kills 100]
    python tools/faults.py --federated [--kills 200]
    python tools/faults.py --rewards [--kills 200]
    python tools/faults.py --page [--kills 200]
    python tools/faults.py --writes [--others 200]

Both drivers train tiny programs, one for each method and update rule, and are killed (SIGKILL) at random times, over
and over until the run is complete; interrupted, suspended, starved of disk space, and locked out of their folder. After
each, no reported step may be missing, and the resumed run's journal and adapter must equal those of a
run that nothing happened to. The exit code is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prgec.core.contract.names import HOST_STATE, OPTIMIZERS, TRAINING_METHODS
from tests.checks.fault_cases import KILLED, Bench, Tally, run_cases
from tests.checks.fault_drivers import CppDriver, PythonDriver
from tests.checks.federated_faults import federated_faults
from tests.checks.page_faults import page_faults
from tests.checks.reward_faults import reward_faults
from tests.checks.side_faults import side_faults
from tests.checks.write_faults import write_faults
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


def table(tallies: Sequence[Tally], program: str = "") -> str:
    """Return the table people read."""
    lines = [
        f"{program:18}{t.driver:8}{t.case:26}{f'{t.survived} / {t.attempted}':>11}{t.steps_lost:>7}{t.mismatches:>12}"
        for t in tallies
    ]
    return "\n".join(lines + [f"        {note}" for t in tallies for note in t.notes[:3]])


_HEAD = f"{'program':18}{'driver':8}{'case':26}{'survived':>11}{'lost':>7}{'mismatches':>12}"


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """Make a folder every user can reach."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        work = Path(name)
        work.chmod(0o755)
        yield work


@dataclass(frozen=True)
class Kind:
    """A kind of program; `optimizer` is empty where the host makes the steps, `state` where the program keeps it."""

    method: str
    optimizer: str
    state: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.method, self.optimizer, self.state)))


def kinds_of(methods: Sequence[str], optimizers: Sequence[str], states: Sequence[str]) -> list[Kind]:
    """Return every kind of program of some methods, update rules and keepers of the state."""
    kinds = [(method, each) for method in methods for each in (optimizers if method != "prge" else [""])]
    return [Kind(*kind, "" if state == "seeded" else state) for kind in kinds for state in states]


def break_program(kind: Kind, work: Path, python: PythonDriver, options: argparse.Namespace) -> list[Tally]:
    """Do everything to both drivers with one program."""
    folder = work / str(kind).replace(" ", "-")
    folder.mkdir(mode=0o755)
    inputs = make_inputs(folder, kind.method, optimizer=kind.optimizer or "norm", state=kind.state or "seeded")
    tallies = []
    for driver in (CppDriver(work / "prge_train"), python):
        bench = Bench(driver, folder, *inputs, random.Random(f"{options.seed} {kind}"), kind.method != "prge")
        bench.prepare()
        tallies += run_cases(bench, options.kills // 2, options.others)
        shutil.rmtree(folder / "whole")
    return tallies


def main() -> int:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="kills a program, half of them for each driver [200]")
    parser.add_argument("--others", type=int, default=10, help="times to do each of the other things [10]")
    parser.add_argument("--method", action="append", choices=TRAINING_METHODS, help="repeatable [prge]")
    parser.add_argument("--optimizer", action="append", choices=OPTIMIZERS, help="update rules; repeatable [norm]")
    parser.add_argument(
        "--state", action="append", choices=("seeded", HOST_STATE), help="who keeps the state; repeatable [seeded]"
    )
    parser.add_argument("--driver", type=Path, help="a built prge_train [build one]")
    parser.add_argument("--side", action="store_true", help="break the server of side networks and its client instead")
    parser.add_argument("--federated", action="store_true", help="break devices that learn together instead")
    parser.add_argument("--rewards", action="store_true", help="break runs that learn from rewards instead")
    parser.add_argument("--page", action="store_true", help="break prgec ui and the runs that it starts instead")
    parser.add_argument("--writes", action="store_true", help="let single writes fail instead, --others of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the random times [0]")
    options = parser.parse_args()
    if options.side:
        return side_faults(options.kills // 2, options.seed)
    if options.federated:
        return federated_faults(options.kills // 2, options.seed)
    if options.rewards:
        return reward_faults(options.kills, options.seed)
    if options.page:
        return page_faults(options.kills, options.seed)
    if options.writes:
        with workplace() as work:
            print(_HEAD, flush=True)
            tallies = []
            for program, tally in write_faults(
                options.driver or build_driver(work), work, options.others, options.seed
            ):
                print(table([tally], program), flush=True)
                tallies.append(tally)
            return 0 if all(each.is_good for each in tallies) else 1
    found: list[Tally] = []
    with workplace() as work, PythonDriver() as python:
        shutil.copy(options.driver or build_driver(work), work / "prge_train")
        print(_HEAD, flush=True)
        for kind in kinds_of(options.method or ["prge"], options.optimizer or ["norm"], options.state or ["seeded"]):
            tallies = break_program(kind, work, python, options)
            print(table(tallies, str(kind)), flush=True)
            found += tallies
    kills = sum(t.attempted for t in found if t.case == KILLED)
    lost, differ = sum(t.steps_lost for t in found), sum(t.mismatches for t in found)
    print(f"{kills} kills, {lost} steps lost, {differ} mismatches")
    if not any(t.case == "disk full" for t in found):
        print("disk full: not tried, this user may not mount a tmpfs")
    return 0 if all(t.is_good for t in found) else 1


if __name__ == "__main__":
    sys.exit(main())
