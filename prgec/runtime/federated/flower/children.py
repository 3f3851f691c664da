"""Flower's commands as processes of this one: they find each other, report to nobody, and end with it."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from prgec.core.machine.extras import extra_hint
from prgec.core.machine.parent import end_with_parent
from prgec.errors import PrgecError, UsageError

LOOPBACK = "127.0.0.1"
# Folder of what Flower needs and writes, in that of the run.
FLOWER_NAME = "flower"
POLL_SECONDS, START_SECONDS, STOP_SECONDS = 0.5, 60.0, 15.0
# Lines of a log that an error shows.
_SHOWN_LINES = 3


def check_flower() -> None:
    """Check that Flower is installed.

    Raises:
        UsageError: If it is not.
    """
    if not (tools() / "flower-superlink").exists():
        raise UsageError("Flower is not installed, and it carries the messages of devices", hint=extra_hint("flower"))


def tools() -> Path:
    """Return the folder of the commands that are installed beside this interpreter."""
    return Path(sys.executable).parent


def environment(flower: Path) -> dict[str, str]:
    """Return the environment of Flower's commands.

    Args:
        flower: Folder of what they keep.
    """
    # Flower finds its own commands by PATH. Unless it may not, it reports its use to its makers, and looks for updates.
    own = {
        "FLWR_HOME": str(flower.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{tools()}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    return {**os.environ, **own}


@contextlib.contextmanager
def running(command: Sequence[str], flower: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of Flower's commands, with all that it starts, while the block runs."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(tools() / command[0]), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(flower),
            start_new_session=True,
            # Nobody else would end Flower when this process is killed.
            preexec_fn=functools.partial(end_with_parent, os.getpid()),
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until a process listens.

    Raises:
        PrgecError: If it ends before, or takes too long.
    """
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        check_alive(process, log)
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return
        time.sleep(POLL_SECONDS)
    raise PrgecError(f"Flower does not listen after {START_SECONDS:.0f} s", where=log)


def check_alive(process: subprocess.Popen[bytes], log: Path) -> None:
    """Check that a process has not ended.

    Raises:
        PrgecError: With the end of its log.
    """
    if process.poll() is not None:
        text = log.read_text(encoding="utf-8", errors="replace")
        raise PrgecError(f"Flower has ended: {last_lines(text)}", where=log)


def last_lines(text: str) -> str:
    """Return the end of a log on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-_SHOWN_LINES:]) or "it says nothing"


def check_port(port: int) -> None:
    """Check that nobody listens on a port of this machine.

    Raises:
        UsageError: If somebody does.
    """
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK, port))
        except OSError as error:
            raise UsageError(
                f"cannot listen on {LOOPBACK}:{port}: {error.strerror}", hint="name another --port"
            ) from error


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listening:
        listening.bind((LOOPBACK, 0))
        return int(listening.getsockname()[1])
