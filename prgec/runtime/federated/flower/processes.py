"""Flower's processes around a run: a SuperLink with the server's app, or a SuperNode with a device's.

Flower's SuperLink runs the apps of anyone who reaches its port, so that of `serve` listens on this machine alone.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.core.formats.fleet_folder import ROUNDS_NAME
from prgec.core.machine.extras import extra_hint
from prgec.core.machine.files import write_atomic
from prgec.core.machine.folder_lock import holder
from prgec.core.machine.parent import end_with_parent
from prgec.errors import InternalError, PrgecError, UsageError
from prgec.runtime.federated.flower.app_files import write_app, write_settings
from prgec.runtime.federated.flower.names import OPTIONS_KEY, RESULT_NAME
from prgec.runtime.federated.node import NODE_NAME
from prgec.runtime.federated.options import FLEET_TABLE, NODE_TABLE, FleetOptions, NodeOptions

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 9092
# Folder of what Flower needs and writes, in that of the run.
_FLOWER = "flower"
_POLL_SECONDS = 0.5
_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
# Time to open a program, and time between letting go of the folder and writing the result.
_OPEN_SECONDS, _GONE_SECONDS = 300.0, 10.0
# Times in a row that a SuperNode may end soon after its start.
_MAX_FAILURES = 5
# Lines of a log that an error shows.
_SHOWN_LINES = 3


@dataclass(frozen=True, kw_only=True)
class Superlink:
    """Where a device finds its server.

    Attributes:
        address: HOST:PORT.
        ca: Certificates to trust as PEM; None for a connection without TLS.
        key: The device's private key as PEM, where the server knows devices by keys.
        trusted: Flower's file of those whose apps this device runs; None for any that the server sends.
    """

    address: str
    ca: Path | None = None
    key: Path | None = None
    trusted: Path | None = None

    def check(self) -> None:
        """Refuse addresses and files that cannot be used.

        Raises:
            UsageError: If the address is none, or one of another machine without TLS, or a file is missing.
        """
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise UsageError(f"--server is {self.address!r}; expected HOST:PORT")
        if self.ca is None and host not in (LOOPBACK, "localhost", "[::1]"):
            raise UsageError(
                "a server of another machine needs --ca",
                hint=f"or make its port one of this machine's: ssh -N -L {port}:{LOOPBACK}:{port} {host}",
            )
        for path in filter(None, (self.ca, self.key, self.trusted)):
            if not path.is_file():
                raise UsageError("no such file", where=path)


def check_flower() -> None:
    """Check that Flower is installed.

    Raises:
        UsageError: If it is not.
    """
    if not (_tools() / "flower-superlink").exists():
        raise UsageError("Flower is not installed, and it carries the messages of devices", hint=extra_hint("flower"))


def serve(
    options: FleetOptions,
    *,
    port: int = DEFAULT_PORT,
    on_line: Callable[[Mapping[str, Any]], None] = lambda line: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Run a server until all rounds are done.

    Args:
        options: Options of the run; the same ones go on with it.
        port: Port of this machine's loopback address.
        on_line: Observes the line of every round.
        should_stop: Checked twice a second.

    Returns:
        Whether the rounds are done; False if it was stopped.

    Raises:
        PrgecError: If the options cannot be used, Flower cannot be started, or the run failed.
    """
    check_flower()
    options.check()
    if (process_id := holder(options.out)) is not None:
        raise UsageError(
            f"process {process_id} is writing to this folder", where=options.out, hint="name another --out"
        )
    _check_port(port)
    flower = options.out / _FLOWER
    flower.mkdir(parents=True, exist_ok=True)
    (options.out / RESULT_NAME).unlink(missing_ok=True)
    settings = write_settings(flower / "serve.toml", vars(options), FLEET_TABLE)
    write_app(flower / "app", settings)
    (flower / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{LOOPBACK}:{port}"\ninsecure = true\n',
        encoding="utf-8",
    )
    log = flower / "superlink.log"
    link = ("flower-superlink", "--insecure", "--port", str(port), "--disable-runtime-dependency-installation")
    lines = _Lines(options.out / ROUNDS_NAME)
    with _process(link, flower, log) as process:
        _wait_for_port(process, port, log)
        _submit(flower)
        watch = _AppWatch(options.out, log)
        while (result := _result(options.out)) is None:
            if should_stop():
                return False
            _check_alive(process, log)
            watch.check()
            lines.show(on_line)
            time.sleep(_POLL_SECONDS)
        lines.show(on_line)
    if result["error"]:
        raise _failure(result)
    return True


def join(options: NodeOptions, superlink: Superlink, *, should_stop: Callable[[], bool] = lambda: False) -> bool:
    """Take part as a device, until the server says that the run is over.

    Args:
        options: Options of the device.
        superlink: Where the server is.
        should_stop: Checked twice a second.

    Returns:
        Whether the run is over; False if it was stopped.

    Raises:
        PrgecError: If the options cannot be used, or Flower cannot be started.
    """
    check_flower()
    superlink.check()
    flower = options.out / _FLOWER
    flower.mkdir(parents=True, exist_ok=True)
    settings = write_settings(flower / "join.toml", vars(options), NODE_TABLE)
    # Flower takes the settings of a node from a file, too, whatever is in its path.
    node = flower / "node.toml"
    write_atomic(node, f"{OPTIONS_KEY} = {json.dumps(str(settings), ensure_ascii=False)}\n".encode())
    command = ["flower-supernode", "--superlink", superlink.address, "--node-config", str(node)]
    command += ["--port", str(_free_port())]
    command += ["--root-certificates", str(superlink.ca.absolute())] if superlink.ca else ["--insecure"]
    command += ["--auth-supernode-private-key", str(superlink.key.absolute())] if superlink.key else []
    command += ["--trusted-entities", str(superlink.trusted.absolute())] if superlink.trusted else []
    log = flower / "supernode.log"
    failures = 0
    while not _is_over(options.out):
        start = time.monotonic()
        with _process(command, flower, log) as process:
            while process.poll() is None and not _is_over(options.out):
                if should_stop():
                    return False
                time.sleep(_POLL_SECONDS)
            if _is_over(options.out):
                # The answer to the last message is on its way.
                time.sleep(_STOP_SECONDS / 3)
                break
        # A SuperNode ends when its SuperLink has been started again, and forgot it.
        failures = 1 if time.monotonic() - start > _START_SECONDS else failures + 1
        if failures == _MAX_FAILURES:
            _check_alive(process, log)
        time.sleep(1)
    return True


class _AppWatch:
    """Notices that the server's end, a process of Flower's that holds the folder, is gone without a result."""

    def __init__(self, out: Path, log: Path) -> None:
        self._out, self._log = out, log
        self._seen = time.monotonic()
        self._patience = _OPEN_SECONDS

    def check(self) -> None:
        """Raise an error where the process has not been there for too long.

        Raises:
            PrgecError: With the end of the log.
        """
        if holder(self._out) is not None:
            self._seen, self._patience = time.monotonic(), _GONE_SECONDS
        elif time.monotonic() - self._seen > self._patience:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            raise PrgecError(f"the server's end is gone: {_last_lines(text)}", where=self._log)


class _Lines:
    """New lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shown = path.stat().st_size if path.exists() else 0

    def show(self, on_line: Callable[[Mapping[str, Any]], None]) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._shown)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._shown += len(whole) + 1
            for line in whole.splitlines():
                on_line(json.loads(line))


def _tools() -> Path:
    """Return the folder of the commands that are installed beside this interpreter."""
    return Path(sys.executable).parent


def _environment(flower: Path) -> dict[str, str]:
    # Flower finds its own commands by PATH. Unless it may not, it reports its use to its makers, and looks for updates.
    own = {
        "FLWR_HOME": str(flower.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{_tools()}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    return {**os.environ, **own}


@contextlib.contextmanager
def _process(command: Sequence[str], flower: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of Flower's commands, with all that it starts, while the block runs."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(_tools() / command[0]), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(flower),
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
        process.wait(_STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _submit(flower: Path) -> None:
    """Give the app to the SuperLink."""
    command = [str(_tools() / "flwr"), "run", str(flower / "app"), "local"]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(flower), check=False)
    if done.returncode:
        raise PrgecError(f"Flower does not take the app: {_last_lines(done.stdout + done.stderr)}")


def _wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        _check_alive(process, log)
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return
        time.sleep(_POLL_SECONDS)
    raise PrgecError(f"Flower does not listen after {_START_SECONDS:.0f} s", where=log)


def _check_alive(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.poll() is not None:
        text = log.read_text(encoding="utf-8", errors="replace")
        raise PrgecError(f"Flower has ended: {_last_lines(text)}", where=log)


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-_SHOWN_LINES:]) or "it says nothing"


def _result(out: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((out / RESULT_NAME).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return found


def _failure(result: Mapping[str, Any]) -> Exception:
    """Return the error that ended the server's app, of the class that it had there."""
    for kind in PrgecError.__subclasses__():
        if kind.exit_code == result["exit_code"]:
            return _rendered(kind, str(result["error"]))
    return InternalError(str(result["error"]))


def _rendered(kind: type[PrgecError], text: str) -> PrgecError:
    what, _, hint = text.partition(". Hint: ")
    return kind(what, hint=hint or None)


def _is_over(out: Path) -> bool:
    try:
        return bool(json.loads((out / NODE_NAME).read_bytes())["is_over"])
    except (FileNotFoundError, ValueError, KeyError):
        return False


def _check_port(port: int) -> None:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK, port))
        except OSError as error:
            raise UsageError(
                f"cannot listen on {LOOPBACK}:{port}: {error.strerror}", hint="name another --port"
            ) from error


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind((LOOPBACK, 0))
        return int(listening.getsockname()[1])
