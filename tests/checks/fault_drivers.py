"""The two drivers as processes to be broken: how each is started, awaited, and observed.

The Python driver takes seconds to import what it needs. So one process imports it once and forks for every run; what
runs in the fork is the command line as a user has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

NOBODY = 65534
_STEP = re.compile(rb"^step (\d+)/", re.M)


@dataclass
class Process:
    """A run under way.

    Attributes:
        pid: To send signals to.
        stderr: File that takes its messages.
    """

    driver: Driver
    pid: int
    stderr: Path

    def kill(self, number: signal.Signals) -> None:
        """Send a signal; to nobody where the run has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""
        return self.driver.wait(self.pid)

    def has_ended(self) -> bool:
        """Return whether the run is over, waited for or not."""
        # Not that of tests/processes.py: this file also runs by its path, where no package `tests` is to be found.
        state = Path(f"/proc/{self.pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"

    def said(self) -> str:
        """Return what it wrote to stderr."""
        return self.stderr.read_text(errors="replace")


class Driver(Protocol):
    """One of the drivers."""

    name: str

    def start(self, arguments: Sequence[str], stderr: Path, *, drop: bool = False) -> Process:
        """Start a run with the flags both drivers share; `drop` gives up root's privileges."""

    def wait(self, pid: int) -> int:
        """Wait for a run it started."""


class CppDriver:
    """`prge_train`."""

    name = "C++"

    def __init__(self, executable: Path) -> None:
        self._executable = executable
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, arguments: Sequence[str], stderr: Path, *, drop: bool = False) -> Process:
        """Start the executable."""
        with stderr.open("wb") as log:
            process = subprocess.Popen(
                [self._executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                **({"user": NOBODY, "group": NOBODY, "extra_groups": []} if drop else {}),
            )
        self._running[process.pid] = process
        return Process(self, process.pid, stderr)

    def wait(self, pid: int) -> int:
        """Wait for the process."""
        return self._running.pop(pid).wait()


class PythonDriver:
    """`prgec run`, in forks of a server; use as a context manager."""

    name = "Python"

    def __enter__(self) -> PythonDriver:
        self._server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._server.stdout is not None
        self._server.stdout.readline()  # it has imported everything
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()

    def start(self, arguments: Sequence[str], stderr: Path, *, drop: bool = False) -> Process:
        """Ask the server for a run."""
        # A fork that is killed before it opens the file would leave the words of the run before.
        stderr.write_bytes(b"")
        return Process(self, self._ask(["run", *arguments], str(stderr), drop, dict(os.environ)), stderr)

    def wait(self, pid: int) -> int:
        """Ask the server how it ended."""
        return self._ask(pid)

    def _ask(self, *request: object) -> int:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())


def acknowledged(folder: Path, process: Process) -> int:
    """Return the last step that a driver has reported: in its messages, or in the metrics that can be followed."""
    steps = [int(number) for number in _STEP.findall(process.stderr.read_bytes())]
    metrics = folder / "metrics.partial.jsonl"
    if metrics.exists():
        whole = metrics.read_bytes().split(b"\n")[:-1]
        steps += [line["step"] for line in map(json.loads, whole) if "lr" in line]
    return max(steps, default=0)


def _serve() -> None:
    """Fork a run for every request [arguments, stderr, drop, environment]; a number is a pid to wait for."""
    import encodings.cp437  # of zip files; whom privileges were taken from may not read it

    import executorch.extension.pybindings._C
    import tokenizers
    import torch

    import prgec.cli.run
    from prgec.runtime.report.plot import plot_run
    from prgec.runtime_ops.native import load_kernels

    assert encodings and executorch and tokenizers and torch and prgec
    load_kernels()
    with tempfile.TemporaryDirectory() as folder:  # finds fonts, once
        plot_run(Path(folder) / "plot.png", [1.0, 2.0], [], "")
    print(flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if len(request) == 1:
            _, status = os.waitpid(request[0], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _become_run(*request)
        print(pid, flush=True)


def _become_run(arguments: list[str], stderr: str, drop: bool, environment: dict[str, str]) -> None:
    from prgec.cli.main import main

    os.environ.update(environment)
    log = os.open(stderr, os.O_WRONLY | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, source in ((0, nothing), (1, nothing), (2, log)):
        os.dup2(source, descriptor)
    if drop:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    code = main(arguments)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
