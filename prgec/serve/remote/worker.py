"""Learns what is queued, one job at a time, each in a process of its own that goes on where it was killed."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

from prgec.serve.remote.jobs import JobStore
from prgec.serve.remote.tokens import Device

logger = logging.getLogger(__name__)

_ERROR_NAME = "error.json"


class Worker:
    """A thread that runs a process for each job.

    Args:
        store: Folder of everything the server keeps.

    Attributes:
        jobs: The jobs.
    """

    def __init__(self, store: Path) -> None:
        self.jobs = JobStore(store)
        self._wake = threading.Event()
        self._is_stopping = False
        self._running: tuple[Path, subprocess.Popen[bytes]] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Begin with the jobs that an earlier server accepted and did not finish."""
        self.jobs.sweep()
        self._thread.start()

    def stop(self) -> None:
        """End the process of the present job; its epochs are on the disk."""
        self._is_stopping = True
        self._wake.set()
        with self._lock:
            if self._running is not None:
                self._running[1].terminate()
        self._thread.join()

    def wake(self) -> None:
        """Look for work."""
        self._wake.set()

    def forget(self, device: Device, name: str) -> None:
        """Delete a job, and end its process.

        Raises:
            HttpError: If the device has none of that name.
        """
        folder = self.jobs.delete(device, name)
        with self._lock:
            if self._running is not None and self._running[0] == folder:
                self._running[1].kill()

    def _work(self) -> None:
        while not self._is_stopping:
            folder = self.jobs.next_queued()
            if folder is None:
                self._wake.wait()
                self._wake.clear()
                continue
            self._learn(folder)

    def _learn(self, folder: Path) -> None:
        with self._lock:
            command = [sys.executable, "-m", "prgec.serve.remote.fit_job", str(folder), str(os.getpid())]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            self._running = (folder, process)
        code = process.wait()
        with self._lock:
            self._running = None
        if self._is_stopping:
            return
        if code == 0:
            self.jobs.finish(folder)
            return
        note = folder / _ERROR_NAME
        error = json.loads(note.read_text(encoding="utf-8")) if note.exists() else f"learning ended with code {code}"
        logger.warning("job %s: %s", folder.name, error)
        self.jobs.finish(folder, error)


def write_error(folder: Path, text: str) -> None:
    """Leave word why a job cannot be learnt."""
    (folder / _ERROR_NAME).write_text(json.dumps(text), encoding="utf-8")
