"""The live display of a compilation: a spinner with stage, part and time left, or a line every ten seconds."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from prgec.cli.render import stderr_console
from prgec.compiler.plan.units import seconds_text
from prgec.compiler.progress import Progress

_STAGES = {
    "load": "reading the checkpoint",
    "export": "tracing the model",
    "passes": "rewriting the graph",
    "lower": "lowering",
    "write": "writing",
}
_SECONDS_BETWEEN_LINES = 10.0
# Earlier guesses are mostly of how long libraries take to import.
_LEAST_FRACTION = 0.4


class CompileDisplay:
    """Shows a compilation on stderr; use as a context manager, and call with each progress.

    Args:
        seconds_between_lines: Time between two lines where stderr is not a terminal.
    """

    def __init__(self, seconds_between_lines: float = _SECONDS_BETWEEN_LINES) -> None:
        self._console = stderr_console()
        self._status = self._console.status("starting")
        self._seconds_between_lines = seconds_between_lines
        self._started = time.monotonic()
        self._newest: Progress | None = None
        self._ended = threading.Event()
        self._writer: threading.Thread | None = None

    def __enter__(self) -> CompileDisplay:
        if self._console.is_terminal:
            self._status.start()
        else:
            self._writer = threading.Thread(target=self._write_lines, daemon=True)
            self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._writer is not None:
            self._writer.join()
        else:
            self._status.stop()

    def __call__(self, progress: Progress) -> None:
        """Take the newest progress."""
        self._newest = progress
        if self._writer is None:
            self._status.update(self._text())

    def _write_lines(self) -> None:
        while not self._ended.wait(self._seconds_between_lines):
            self._console.print(f"compile: {self._text()}", markup=False, soft_wrap=True)

    def _text(self) -> str:
        elapsed = time.monotonic() - self._started
        return line(self._newest, elapsed) if self._newest is not None else f"starting, {seconds_text(round(elapsed))}"


def line(progress: Progress, elapsed: float) -> str:
    """Describe a moment of a compilation in one line.

    Args:
        progress: The moment.
        elapsed: Seconds since the start.
    """
    count = f" {progress.done + 1} of {progress.total}" if progress.total else ""
    detail = f" ({progress.detail})" if progress.detail else ""
    left = ""
    if progress.fraction >= _LEAST_FRACTION:
        left = f", about {seconds_text(round(elapsed * (1 - progress.fraction) / progress.fraction))} left"
    return f"{_STAGES[progress.stage]}{count}{detail}, {seconds_text(round(elapsed))}{left}"
