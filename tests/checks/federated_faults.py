"""Kill a server and its devices while they learn together: `python tools/faults.py --federated`.

One process plays the server and all devices (`prgec federate simulate`), each with its files, and is killed (SIGKILL)
at random times until the run is over, over and over. No merged round may be missing after a kill, and in the end every
adapter equals the one of a run that nothing happened to, byte for byte.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from prgec.core.formats.adapter import read_adapter
from prgec.errors import ProgramError
from tests.checks.kills import HEAD, KilledWork
from tests.processes import ends_within
from tests.tiny_inputs import make_inputs

_METHODS = ("prge", "exact")
_DEVICES, _ROUNDS = 3, 12
_ROWS = [("a b", "c"), ("b a", "d"), ("c d", "a"), ("d c", "b"), ("a d", "c"), ("b c", "d")]


@dataclass
class FederatedKills(KilledWork):
    """The outcome of the kills of one method.

    Attributes:
        method: Method of the program.
        count: Kills that met a living process.
        lost: Rounds that were merged and then missing.
        differ: Adapters that are not those of the whole run.
    """

    method: str
    count: int = 0

    def __str__(self) -> str:
        return f"{self.method:8}{self.count:>6}{super().__str__()}"


class Fleet:
    """A program and rows for devices that are played.

    Args:
        work: Folder for all of it.
        method: Method of the program.
    """

    def __init__(self, work: Path, method: str) -> None:
        self.out = work / "out"
        program, *_ = make_inputs(work, method)
        rows = work / "rows.jsonl"
        rows.write_text("".join(json.dumps({"prompt": p, "completion": c}) + "\n" for p, c in _ROWS), encoding="utf-8")
        flags = ("--devices", _DEVICES, "--min-devices", _DEVICES, "--rounds", _ROUNDS, "--local-steps", 20)
        given = ("simulate", program, "--data", rows, *flags, "--lr", 0.01, "--out", self.out)
        self._command = [sys.executable, "-m", "prgec", "federate", *map(str, given)]
        start = time.monotonic()
        subprocess.run(self._command, check=True, stdout=subprocess.DEVNULL)
        self.seconds = time.monotonic() - start
        self.expected = self.adapters()
        shutil.rmtree(self.out)

    def start(self) -> subprocess.Popen[bytes]:
        """Begin the run, or go on with it."""
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def adapters(self) -> dict[str, bytes]:
        """Bytes of the adapters of the server and of all devices."""
        return {str(path.relative_to(self.out)): path.read_bytes() for path in self.out.rglob("adapter.safetensors")}

    def merged(self) -> int:
        """How far the server's adapter is, by its own account."""
        try:
            return int(read_adapter(self.out / "adapter.safetensors")[1]["step"])
        except ProgramError:
            return 0


def kill_fleet(fleet: Fleet, tally: FederatedKills, kills: int, chance: random.Random) -> None:
    """Kill until there were enough, and let the last run end."""
    while tally.count < kills or not tally.finished:
        merged = 0
        shutil.rmtree(fleet.out, ignore_errors=True)
        # A run goes on where it was killed, so that every one ends.
        while (process := fleet.start()) and not ends_within(process, chance.uniform(0.3, fleet.seconds)):
            process.kill()
            process.wait()
            tally.count += 1
            tally.lost += fleet.merged() < merged
            merged = fleet.merged()
        assert process.returncode == 0, process.stderr.read().decode() if process.stderr else ""
        tally.differ += fleet.adapters() != fleet.expected
        tally.finished += 1


def federated_faults(kills: int, seed: int) -> int:
    """Break runs of both methods, print the table, and return the exit code."""
    print(f"{'method':8}{'kills':>6}{HEAD}", flush=True)
    tallies = []
    for method in _METHODS:
        with tempfile.TemporaryDirectory(prefix="federated-faults-") as name:
            tally = FederatedKills(method)
            kill_fleet(Fleet(Path(name), method), tally, kills, random.Random(seed))
            tallies.append(tally)
            print(tally, flush=True)
    return 0 if all(each.is_good for each in tallies) else 1
