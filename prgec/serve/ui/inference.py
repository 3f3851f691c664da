"""The page's end of the process that answers for a program: one at a time, kept for the next question."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prgec.errors import PrgecError, ProgramError

# Time limit of a question, loading the program included.
PATIENCE_S = 300.0


class Inference:
    """Asks programs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._program: tuple[Path, int, int] | None = None

    def ask(self, program: Path, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a program's states say.

        Raises:
            PrgecError: If the program is gone or cannot answer.
        """
        with self._lock:
            process = self._process_for(program)
            assert process.stdin is not None and process.stdout is not None
            # One that hangs is ended, which ends the wait for its line.
            alarm = threading.Timer(PATIENCE_S, process.kill)
            alarm.start()
            try:
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except OSError:
                line = ""
            finally:
                alarm.cancel()
            if not line:
                self._end()
                raise PrgecError("the program ended without an answer", where=program)
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PrgecError(reply["error"])
        answer: dict[str, Any] = reply["answer"]
        return answer

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _process_for(self, program: Path) -> subprocess.Popen[str]:
        try:
            about = program.stat()
        except OSError as error:
            raise ProgramError("the program is gone", where=program, hint="compile it again") from error
        key = (program, about.st_mtime_ns, about.st_size)
        if self._process is None or self._process.poll() is not None or self._program != key:
            self._end()
            command = [sys.executable, "-m", "prgec.serve.ui.inference_worker", str(program)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            self._program = key
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                # Nobody would read the unwritten rest.
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            self._process = None
