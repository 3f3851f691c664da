"""Commands of prgec that the page started: processes of their own, which go on without it, and notes to find them by.

Notes lie in a hidden folder beside the runs; a page that starts later reads them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prgec.core.config.option import Item
from prgec.core.config.toml_file import write_options
from prgec.core.formats.run_folder import SUMMARY_NAME
from prgec.core.machine.files import write_atomic
from prgec.core.machine.folder_lock import holder
from prgec.errors import UsageError

FOLDER = ".prgec-ui"
_NOTE, _OUTPUT, OPTIONS = "job.json", "output.log", "options.toml"
_ID = re.compile(r"[0-9a-f]{16}")
_TAIL_BYTES = 16 << 10
_ERROR = "error: "


@dataclass(frozen=True, kw_only=True)
class StartedCommand:
    """A command that was started.

    Attributes:
        id: Its id in requests.
        kind: The command: `run` or `compile`.
        target: The run folder, or the program.
        process: Its process.
        born: Start of that process by the system's clock, which distinguishes it from a later one of its number.
        started: When, in seconds since 1970.
        folder: Where its notes are.
    """

    id: str
    kind: str
    target: str
    process: int
    born: str
    started: float
    folder: str

    @property
    def is_alive(self) -> bool:
        """Whether it is under way."""
        return _born(self.process) == self.born

    @property
    def is_working(self) -> bool:
        """Whether it is under way, and not done but for the end of its process.

        A run has written its last file and let go of its folder by then.
        """
        if not self.is_alive:
            return False
        target = Path(self.target)
        try:
            is_written = (target / SUMMARY_NAME).stat().st_mtime >= self.started
        except OSError:
            is_written = False
        return not is_written or holder(target) is not None

    @property
    def output(self) -> str:
        """The end of what it printed."""
        try:
            with (Path(self.folder) / _OUTPUT).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    @property
    def error(self) -> str:
        """Why it ended, where it failed."""
        lines = [line for line in self.output.splitlines() if line.startswith(_ERROR)]
        return "" if self.is_alive or not lines else lines[-1].removeprefix(_ERROR)

    @property
    def options(self) -> Path:
        """The TOML file it was started with."""
        return Path(self.folder) / OPTIONS


class Jobs:
    """Starts commands, and finds those that were started.

    Args:
        root: Folder of the runs.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute() / FOLDER
        self._lock = threading.Lock()
        # Children of this process are waited for, or they stay in the table of processes.
        self._children: list[subprocess.Popen[bytes]] = []

    def all(self) -> list[StartedCommand]:
        """Return all that were started, the newest first."""
        self._children = [child for child in self._children if child.poll() is None]
        try:
            folders = [entry for entry in self._root.iterdir() if _ID.fullmatch(entry.name)]
        except OSError:
            return []
        found = [job for folder in folders if (job := _read(folder)) is not None]
        return sorted(found, key=lambda job: -job.started)

    def find(self, name: str) -> StartedCommand | None:
        """Return the job an id is of."""
        return next((job for job in self.all() if job.id == name), None)

    def of(self, target: Path) -> StartedCommand | None:
        """Return the last job that was to write a run folder or a program."""
        return next((job for job in self.all() if job.target == str(target)), None)

    def start(self, kind: str, target: Path, text: str, arguments: Sequence[str]) -> StartedCommand:
        """Start `prgec KIND -c FILE ARGUMENTS`.

        Args:
            kind: The command.
            target: File or folder that it writes.
            text: Content of the TOML file.
            arguments: Further arguments.

        Raises:
            UsageError: If another process is writing there; it says which.
        """
        with self._lock:
            self._check_free(target)
            name = secrets.token_hex(8)
            folder = self._root / name
            folder.mkdir(parents=True)
            (folder / OPTIONS).write_text(text, encoding="utf-8")
            command = [sys.executable, "-m", "prgec", kind, "-c", str(folder / OPTIONS), *arguments]
            with (folder / _OUTPUT).open("wb") as output:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            self._children.append(child)
            job = StartedCommand(
                id=name,
                kind=kind,
                target=str(target),
                process=child.pid,
                born=_born(child.pid),
                started=time.time(),
                folder=str(folder),
            )
            write_atomic(folder / _NOTE, json.dumps(asdict(job)).encode())
            return job

    def _check_free(self, target: Path) -> None:
        last, process = self.of(target), holder(target)
        if last is not None and last.is_working and process in (None, last.process):
            when = time.strftime("%H:%M:%S", time.localtime(last.started))
            raise UsageError(
                f"{target.name} is being written already, by process {last.process}, which this page started at {when}"
            )
        if process is not None:
            raise UsageError(f"{target.name} is being written already, by process {process}")


def options_text(values: Mapping[str, Any], table: Sequence[Item], command: str) -> str:
    """Return the TOML file that says values to a command."""
    return write_options(values, table, folder=None, remark=f"{command} -c FILE does this")


def stop(process: int) -> None:
    """Ask a process to finish its step, write everything and end."""
    try:
        os.kill(process, signal.SIGINT)
    except (ProcessLookupError, PermissionError) as error:
        raise UsageError(f"process {process} cannot be stopped: {error.strerror}") from error


def _read(folder: Path) -> StartedCommand | None:
    """Return a job from its notes; None where they were not all written."""
    try:
        return StartedCommand(**{**json.loads((folder / _NOTE).read_bytes()), "folder": str(folder)})
    except (OSError, ValueError, TypeError):
        return None


def _born(process: int) -> str:
    """Return when a process began, in the system's count; empty where there is none, or it has ended."""
    try:
        # The name in parentheses may hold anything.
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in ("Z", "X") else fields[18]
