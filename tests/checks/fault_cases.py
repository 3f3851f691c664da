"""The accidents of a run on a phone, made on purpose: killed, interrupted, suspended, starved, locked out."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.checks.fault_drivers import NOBODY, Driver, Process, acknowledged

STEPS = 60
_FLAGS = {"--steps": STEPS, "--lr": 0.02, "--eval-every": 17, "--snapshot-every": 7, "--seed": 3}
_PAGE = 4096
_FILES = ("journal.bin", "adapter.safetensors")
_OK, _INTERRUPTED, _FAILED = 0, 130, 1
KILLED = "SIGKILL at a random time"


@dataclass
class Tally:
    """One row of the table: how often something was done to a driver, and what came of it."""

    driver: str
    case: str
    attempted: int = 0
    survived: int = 0
    steps_lost: int = 0
    mismatches: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether everything was survived."""
        return self.attempted == self.survived and not self.steps_lost and not self.mismatches


@dataclass
class Bench:
    """A driver, what it trains, and the result of a run that nothing happened to.

    Attributes:
        takes_again: Whether a resumed run goes back to its last snapshot, and takes the later steps again.
    """

    driver: Driver
    work: Path
    program: Path
    rows: Path
    eval_rows: Path
    rng: random.Random
    takes_again: bool = False
    seconds: float = 0.0
    whole: dict[str, bytes] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make the reference."""
        out = self.work / "whole"
        started = time.monotonic()
        code = self.start(out).wait()
        if code != _OK:
            raise SystemExit(f"faults: the {self.driver.name} driver fails undisturbed, with exit code {code}")
        self.seconds = time.monotonic() - started
        self.whole = {name: (out / name).read_bytes() for name in _FILES}

    def start(self, out: Path, *, resume: bool = False, drop: bool = False) -> Process:
        """Start the run in a folder."""
        flags = [str(part) for pair in _FLAGS.items() for part in pair]
        arguments = [
            str(self.program),
            "--rows",
            str(self.rows),
            "--eval-rows",
            str(self.eval_rows),
            *flags,
            "--out",
            str(out),
            *["--resume"] * resume,
        ]
        return self.driver.start(arguments, self.work / f"stderr-{self.driver.name}", drop=drop)

    def wait_a_while(self, folder: Path, process: Process) -> None:
        """Wait for a random time, half the time one that ends while the run takes steps."""
        if self.rng.random() < 0.5:
            time.sleep(self.rng.uniform(0, 1.05 * self.seconds))
        else:
            self.wait_for_steps(folder, process)

    def wait_for_steps(self, folder: Path, process: Process) -> None:
        """Wait until the journal has a random length, or the run has ended."""
        size = self.rng.randint(400, len(self.whole["journal.bin"]))
        deadline = time.monotonic() + 60
        journal = folder / "journal.partial.bin"
        while time.monotonic() < deadline and not (folder / "journal.bin").exists() and not process.has_ended():
            with contextlib.suppress(OSError):
                if journal.stat().st_size >= size:
                    return
            time.sleep(0.0005)

    def check_kept(self, tally: Tally, folder: Path, known: int) -> None:
        """Count steps that were reported and are in no journal."""
        tally.steps_lost += max(0, known - steps_in(folder))

    def check_end(self, tally: Tally, folder: Path, names: tuple[str, ...] = _FILES) -> None:
        """Resume to the end where that is needed, and compare."""
        code = _OK if (folder / "journal.bin").exists() and steps_in(folder) == STEPS else self._finish(folder)
        same = code == _OK and all((folder / name).read_bytes() == self.whole[name] for name in names)
        tally.survived += code == _OK
        tally.mismatches += code == _OK and not same
        if code != _OK:
            tally.notes.append(f"exit code {code}")
        shutil.rmtree(folder, ignore_errors=True)

    def _finish(self, folder: Path) -> int:
        return self.start(folder, resume=True).wait()


def steps_in(folder: Path) -> int:
    """Return the steps in a folder's journal, 0 without one."""
    from prgec.core.formats.journal import read_journal

    for name in ("journal.partial.bin", "journal.bin"):
        if (folder / name).exists():
            return len(read_journal(folder / name).steps)
    return 0


def kill(bench: Bench, tally: Tally, count: int) -> None:
    """Kill runs and what resumes them until `count` kills have hit."""
    while tally.attempted < count:
        folder, known, ended = bench.work / "killed", 0, False
        hits = 0
        while not ended and tally.attempted + hits < count:
            process = bench.start(folder, resume=folder.exists())
            bench.wait_a_while(folder, process)
            process.kill(signal.SIGKILL)
            code = process.wait()
            ended = code != -signal.SIGKILL
            hits += not ended
            # Steps that are taken again may be missing until then; steps that this process reported may not.
            known = max(0 if bench.takes_again else known, acknowledged(folder, process))
            bench.check_kept(tally, folder, known)
            if ended and code != _OK:
                tally.notes.append(process.said().strip().splitlines()[-1])
        if hits:
            survived = tally.survived
            bench.check_end(tally, folder)
            tally.attempted += hits
            tally.survived = survived + hits * (tally.survived > survived)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def interrupt(bench: Bench, tally: Tally, number: signal.Signals) -> None:
    """Ask a run to end: it finishes the step, writes everything, and says so by its exit code."""
    folder = bench.work / "interrupted"
    process = bench.start(folder)
    bench.wait_for_steps(folder, process)
    process.kill(number)
    code = process.wait()
    if code == _OK:  # it was through already
        shutil.rmtree(folder)
        return
    tally.attempted += 1
    bench.check_kept(tally, folder, acknowledged(folder, process))
    if code != _INTERRUPTED or not (folder / "journal.bin").exists():
        tally.notes.append(f"exit code {code}: {process.said().strip()[-80:]}")
        shutil.rmtree(folder)
        return
    # The journal has one more hash, of the state the run was left in.
    bench.check_end(tally, folder, ("adapter.safetensors",))


def suspend(bench: Bench, tally: Tally) -> None:
    """Stop a run and let it go on, some times."""
    folder = bench.work / "suspended"
    tally.attempted += 1
    process = bench.start(folder)
    for _ in range(3):
        time.sleep(bench.rng.uniform(0, 0.3 * bench.seconds))
        process.kill(signal.SIGSTOP)
        time.sleep(0.05)
        process.kill(signal.SIGCONT)
    code = process.wait()
    if code != _OK:
        tally.notes.append(f"exit code {code}")
    bench.check_end(tally, folder)


def fill_disk(bench: Bench, tally: Tally) -> None:
    """Let the disk fill up during a run, then make room."""
    with _small_disk(bench.work / "disk") as disk:
        folder, ballast = disk / "run", disk / "ballast"
        tally.attempted += 1
        os.chmod(disk, 0o777)
        free_pages = bench.rng.randint(0, _needed_pages(bench))
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(_PAGE))
        os.truncate(ballast, max(0, ballast.stat().st_size - free_pages * _PAGE))
        process = bench.start(folder)
        code = process.wait()
        is_told = code == _OK or (code == _FAILED and "No space left on device" in process.said())
        bench.check_kept(tally, folder, acknowledged(folder, process))
        ballast.unlink()
        if is_told:
            bench.check_end(tally, folder)
        else:
            tally.notes.append(f"exit code {code}: {process.said().strip()[-80:]}")


def lock_out(bench: Bench, tally: Tally) -> None:
    """Take the folder's write permission away during a run, then give it back."""
    folder = bench.work / "locked"
    folder.mkdir()
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(folder, NOBODY, NOBODY)
    process = bench.start(folder, drop=is_root)
    bench.wait_for_steps(folder, process)
    folder.chmod(0o555)
    code = process.wait()
    folder.chmod(0o755)
    if code == _OK:  # it was through already
        shutil.rmtree(folder)
        return
    tally.attempted += 1
    bench.check_kept(tally, folder, acknowledged(folder, process))
    if code == _FAILED and "ermission denied" in process.said():
        bench.check_end(tally, folder)
        return
    tally.notes.append(f"exit code {code}: {process.said().strip()[-80:]}")
    shutil.rmtree(folder)


def _needed_pages(bench: Bench) -> int:
    return 8 + sum(2 + len(data) // _PAGE for data in bench.whole.values())


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()


def can_mount(work: Path) -> bool:
    """Return whether this user may make the small disk."""
    try:
        with _small_disk(work / "disk"):
            return True
    except (OSError, subprocess.CalledProcessError):
        (work / "disk").rmdir()
        return False


def run_cases(bench: Bench, kills: int, others: int) -> list[Tally]:
    """Do everything to one driver.

    Args:
        bench: The driver and its run, prepared.
        kills: How often to kill it.
        others: How often to do each of the other things.
    """
    name = bench.driver.name
    tallies = [Tally(name, KILLED)]
    kill(bench, tallies[0], kills)
    cases: list[tuple[str, Callable[[Bench, Tally], None]]] = [
        ("SIGINT", lambda b, t: interrupt(b, t, signal.SIGINT)),
        ("SIGTERM", lambda b, t: interrupt(b, t, signal.SIGTERM)),
        ("SIGSTOP, SIGCONT", suspend),
        ("write permission revoked", lock_out),
    ]
    if can_mount(bench.work):
        cases.append(("disk full", fill_disk))
    for case, do in cases:
        tally = Tally(name, case)
        for _ in range(4 * others):
            if tally.attempted < others:
                do(bench, tally)
        tallies.append(tally)
    return tallies
