"""Break both ends of the line of side networks, over TLS on the loopback: `python tools/faults.py --side`.

A device that sends shards is killed at random times until it is done, over and over; then a server is, while a device
sends to it and while it learns. Nothing that was acknowledged may be missing, nothing may be stored by half, and the
network that is fetched in the end equals the one that is learnt from the files, bit for bit.
"""

from __future__ import annotations

import hashlib
import random
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from prgec.serve.remote.client import job_of, pull, push
from prgec.serve.remote.connection import Server
from prgec.serve.remote.tokens import add_device
from prgec.serve.side.cache import read_cache
from prgec.serve.side.fit import fit
from prgec.serve.side.fit_options import FitOptions
from tests.checks.kills import KilledWork
from tests.processes import ends_within
from tests.remote.running import RunningServer, make_certificate
from tests.side.test_fit import write_shards

# Enough epochs that a server is killed on the way, many times.
_OPTIONS = {"rank": 8, "epochs": 300, "lr": 1e-3, "seed": 5}
_LONGEST_LIFE_S = 8.0
_ROWS, _CUTS = 400, tuple(range(20, 400, 20))


@dataclass
class Kills(KilledWork):
    """The outcome of the kills of one end.

    Attributes:
        end: Which.
        count: Kills that met a living process.
        lost: Shards that were acknowledged and then missing, or epochs that were done and then not.
        halves: Files that are not whole shards.
        differ: Networks that are not the one of the files.
    """

    end: str
    count: int = 0
    halves: int = 0

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost."""
        return super().is_good and not self.halves

    def __str__(self) -> str:
        return f"{self.end:8}{self.count:>6}{self.lost:>6}{self.halves:>8}{self.differ:>8}{self.finished:>10}"


class Line:
    """A server with TLS, a device's token, and shards to send.

    Args:
        work: Folder for all of it.
    """

    def __init__(self, work: Path) -> None:
        self.work, self.store = work, work / "store"
        self.cert, self.key = make_certificate(work)
        self.token = add_device(self.store, "phone")
        (work / "token").write_text(self.token)
        self.acts = write_shards(work / "acts", num_rows=_ROWS, cuts=_CUTS)
        fit(read_cache(self.acts), work / "expected", FitOptions(**_OPTIONS))  # type: ignore[arg-type]
        self.expected = (work / "expected").read_bytes()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])

    def serve(self) -> RunningServer:
        """Start the server, on the same port every time."""
        return RunningServer(self.store, "--tls-cert", str(self.cert), "--tls-key", str(self.key), port=self.port)

    @property
    def server(self) -> Server:
        """The server as the device reaches it."""
        return Server(f"https://127.0.0.1:{self.port}", self.token, self.cert)

    def begin(self) -> None:
        """Forget the job of the shards, as another folder would have none."""
        (self.acts / "job.json").unlink(missing_ok=True)

    def send(self) -> subprocess.Popen[bytes]:
        """Start a device that sends the shards, and asks for nothing."""
        command = [sys.executable, "-m", "prgec", "side", "push", str(self.acts), "--server", self.server.url]
        command += ["--token-file", str(self.work / "token"), "--ca", str(self.cert), "--no-train"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stored(self) -> dict[str, str]:
        """Hashes of the shards of the present job by name: those a server has answered for, with a sum beside them."""
        if not (self.acts / "job.json").exists():
            return {}
        sums = self.store.glob(f"jobs/*/{job_of(self.acts, make=False)}/shards/shard-*.sha256")
        shards = [path.with_suffix(".safetensors") for path in sums]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in shards}

    def look(self, tally: Kills, before: dict[str, str]) -> dict[str, str]:
        """Compare what is stored with what was, and with what was sent."""
        now = self.stored()
        whole = {hashlib.sha256(path.read_bytes()).hexdigest() for path in self.acts.glob("shard-*")}
        tally.lost += len(before.keys() - now.keys())
        tally.halves += sum(digest not in whole for digest in now.values())
        return now

    def finish(self, tally: Kills) -> None:
        """Send the rest, have the network learnt, fetch it and compare."""
        push(self.server, self.acts, _OPTIONS)
        pull(self.server, self.acts, self.work / "fetched")
        tally.differ += (self.work / "fetched").read_bytes() != self.expected
        tally.finished += 1


def kill_clients(line: Line, kills: int, chance: random.Random) -> Kills:
    """Kill devices that send; the last job is learnt too."""
    tally = Kills("client")
    with line.serve():
        while tally.count < kills:
            line.begin()
            known: dict[str, str] = {}
            while (process := line.send()) and not ends_within(process, chance.uniform(0.2, 1.2)):
                process.kill()
                process.wait()
                tally.count += 1
                known = line.look(tally, known)
            line.look(tally, known)
            tally.finished += 1
        line.finish(tally)
    return tally


def kill_servers(line: Line, kills: int, chance: random.Random) -> Kills:
    """Kill a server while a device sends to it, and then while it learns, job after job."""
    tally = Kills("server")
    running = line.serve()
    while tally.count < kills:
        line.begin()
        running = _while_sending(line, running, tally, chance)
        push(line.server, line.acts, _OPTIONS)
        epochs = 0
        # The last job is left in peace in the end: a slow machine may need longer for an epoch than a server lives.
        while tally.count < kills:
            # As long as a learner takes to start, and some epochs.
            time.sleep(chance.uniform(0.1, _LONGEST_LIFE_S))
            status = line.server.json("GET", f"/v1/jobs/{job_of(line.acts, make=False)}")
            tally.lost += len(status["epochs"]) < epochs
            epochs = len(status["epochs"])
            if status["state"] == "done":
                break
            running = _killed(line, running, tally)
        line.finish(tally)
        line.look(tally, {})
    running.kill()
    return tally


def _while_sending(line: Line, running: RunningServer, tally: Kills, chance: random.Random) -> RunningServer:
    device, known = line.send(), {}
    for _ in range(4):
        if ends_within(device, chance.uniform(0.2, 1.2)):
            break
        running = _killed(line, running, tally)
        known = line.look(tally, known)
    device.wait()
    return running


def _killed(line: Line, running: RunningServer, tally: Kills) -> RunningServer:
    running.kill()
    tally.count += 1
    return line.serve()


def side_faults(kills: int, seed: int) -> int:
    """Break both ends, print the table, and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="side-faults-") as name:
        line, chance = Line(Path(name)), random.Random(seed)
        print(f"{'end':8}{'kills':>6}{'lost':>6}{'halves':>8}{'differ':>8}{'finished':>10}", flush=True)
        tallies = []
        for break_end in (kill_clients, kill_servers):
            tallies.append(break_end(line, kills, chance))
            print(tallies[-1], flush=True)
    return 0 if all(each.is_good for each in tallies) else 1
