"""The server of a run over Flower: a SuperLink with the server's app.

Flower's SuperLink runs the apps of anyone who reaches its port, so that this one listens on this machine alone.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prgec.core.formats.fleet_folder import ROUNDS_NAME
from prgec.core.machine.folder_lock import holder
from prgec.errors import InternalError, PrgecError, UsageError
from prgec.runtime.federated.flower.app_files import write_app, write_settings
from prgec.runtime.federated.flower.children import (
    FLOWER_NAME,
    LOOPBACK,
    POLL_SECONDS,
    check_alive,
    check_flower,
    check_port,
    environment,
    last_lines,
    running,
    tools,
    wait_for_port,
)
from prgec.runtime.federated.flower.names import DEFAULT_PORT, RESULT_NAME
from prgec.runtime.federated.options import FLEET_TABLE, FleetOptions

# Time to open a program, and time between letting go of the folder and writing the result.
_OPEN_SECONDS, _GONE_SECONDS = 300.0, 10.0


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
    check_port(port)
    flower = options.out / FLOWER_NAME
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
    with running(link, flower, log) as process:
        wait_for_port(process, port, log)
        _submit(flower)
        watch = _AppWatch(options.out, log)
        while (result := _result(options.out)) is None:
            if should_stop():
                return False
            check_alive(process, log)
            watch.check()
            lines.show(on_line)
            time.sleep(POLL_SECONDS)
        lines.show(on_line)
    if result["error"]:
        raise _failure(result)
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
            raise PrgecError(f"the server's end is gone: {last_lines(text)}", where=self._log)


class _Lines:
    """New lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # A part of a line, left by a server that was killed, will be removed.
        self._shown = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0

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


def _submit(flower: Path) -> None:
    """Give the app to the SuperLink."""
    command = [str(tools() / "flwr"), "run", str(flower / "app"), "local"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(flower), check=False)
    if done.returncode:
        raise PrgecError(f"Flower does not take the app: {last_lines(done.stdout + done.stderr)}")


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
            return kind(str(result["error"]), where=result["where"], hint=result["hint"])
    return InternalError(str(result["error"]))
