"""Reports a run to trackers from threads of their own: one that is slow or fails neither stops nor slows the run."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from prgec.runtime.trackers.sink import Sink, TrackedRun

logger = logging.getLogger(__name__)

# Lines that wait for a tracker, about 0.3 KB each; further ones are left out.
MOST_WAITING = 200_000
# Lines handed over at a time.
_BATCH = 500
# A tracker receives lines of a run under way at most this often, and has this long to finish when the run has ended.
_PERIOD_S = 0.5
PATIENCE_S = 20.0
_ABORTED_S = 2.0


class Feed:
    """Reports to one tracker.

    Args:
        name: Name of the tracker.
        sink: The tracker.
        run: The run to report.
    """

    def __init__(self, name: str, sink: Sink, run: TrackedRun) -> None:
        self._name, self._sink, self._run = name, sink, run
        self._lines: queue.Queue[Mapping[str, Any]] = queue.Queue(MOST_WAITING)
        self._ended = threading.Event()
        self._summary: Mapping[str, Any] = {}
        self._is_silent = False
        # One that hangs for good must not keep the process.
        self._thread = threading.Thread(target=self._work, name=f"prgec-{name}", daemon=True)
        self._thread.start()

    def write(self, line: Mapping[str, Any]) -> None:
        """Hand over a line; never waits."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._warn(f"is {MOST_WAITING} lines late")

    def end(self, summary: Mapping[str, Any]) -> None:
        """Hand over how the run ended."""
        self._summary = summary
        self._ended.set()

    def wait(self, deadline: float) -> None:
        """Wait until the tracker has everything, or the clock is at the deadline."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._warn("did not finish in time")

    def _work(self) -> None:
        try:
            self._sink.begin(self._run)
            while not (self._ended.is_set() and self._lines.empty()):
                if lines := self._waiting():
                    self._sink.log(lines)
            self._sink.end(self._summary)
        except BaseException as error:  # also what libraries raise to end the process
            self._warn(f"failed: {type(error).__name__}: {error}")

    def _waiting(self) -> list[Mapping[str, Any]]:
        lines: list[Mapping[str, Any]] = []
        try:
            while len(lines) < _BATCH:
                lines.append(self._lines.get_nowait())
        except queue.Empty:
            self._ended.wait(_PERIOD_S)
        return lines

    def _warn(self, what: str) -> None:
        if not self._is_silent:
            self._is_silent = True
            text = " ".join(what.split())
            logger.warning("%s %s; the run goes on, and its folder has everything", self._name, text)


class Feeds:
    """Reports a run to all trackers; use as a context manager.

    Args:
        sinks: Trackers by name.
        run: The run to report.
        patience_s: How long the end of the run waits for all of them.
    """

    def __init__(self, sinks: Mapping[str, Sink], run: TrackedRun, patience_s: float = PATIENCE_S) -> None:
        self._feeds: Sequence[Feed] = [Feed(name, sink, run) for name, sink in sinks.items()]
        self._patience_s = patience_s
        self.summary: Mapping[str, Any] = {}

    def __enter__(self) -> Feeds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for feed in self._feeds:
            feed.end(self.summary)
        # A user who aborts a run does not wait for trackers.
        deadline = time.monotonic() + (self._patience_s if error is None else min(_ABORTED_S, self._patience_s))
        for feed in self._feeds:
            feed.wait(deadline)

    def write(self, line: Mapping[str, Any]) -> None:
        """Report a line of metrics."""
        for feed in self._feeds:
            feed.write(line)
