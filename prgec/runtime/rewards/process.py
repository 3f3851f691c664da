"""The run's side of the process that computes rewards."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prgec.errors import DataError, NumericsError
from prgec.runtime.rewards.source import RewardSource

logger = logging.getLogger(__name__)

# Imports of a user's file may take long; answers may not.
_START_SECONDS = 120.0
_HINT = "correct the reward, or go on with --not-finite skip"


@dataclass(frozen=True, kw_only=True)
class RewardLimits:
    """Bounds of the process.

    Attributes:
        seconds: Most seconds for one answer.
        memory: Most bytes of address space.
        network: Whether it may reach the network.
    """

    seconds: float = 10.0
    memory: int = 4 << 30
    network: bool = False


class RewardProcess:
    """Computes rewards in a process that is started when it is first needed, and again after it was ended.

    Args:
        sources: The rewards, which are added.
        limits: Bounds of the process.
    """

    def __init__(self, sources: Sequence[RewardSource], limits: RewardLimits) -> None:
        self._sources, self._limits = list(sources), limits
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._has_warned = False
        self._end: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Start the process, if none is running.

        Raises:
            DataError: If a reward cannot be loaded.
        """
        if self._process is not None:
            return
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prgec.runtime.rewards.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _end, self._process)
        setup = {"sources": [asdict(each) for each in self._sources]}
        reply = self._ask(
            {**setup, "memory": self._limits.memory, "network": self._limits.network}, seconds=_START_SECONDS
        )
        if reply is None or "error" in reply:
            self.close()
            reason = "its process did not start" if reply is None else reply["error"]
            raise DataError(f"the reward cannot be loaded: {reason}", where=self._name())
        if not reply["apart"] and not self._has_warned:
            self._has_warned = True
            logger.warning("this system cannot keep a process from the network: the reward can reach it")

    def score(self, prompt: Any, answer: str, record: dict[str, Any]) -> float:
        """Return the reward of an answer, a finite number.

        Raises:
            NumericsError: If there is none: the reward raised, returned no finite number, was too slow, or ended.
            DataError: If a reward cannot be loaded.
        """
        self.start()
        reply = self._ask({"prompt": prompt, "answer": answer, "record": record}, seconds=self._limits.seconds)
        if reply is None:
            assert self._process is not None, "it was started"
            code = self._process.poll()
            self.close()
            reason = (
                f"the reward took more than {self._limits.seconds:g} s"
                if code is None
                else f"the process of the reward ended with code {code}"
            )
            raise NumericsError(reason, where=self._name(), hint=f"{_HINT}, or raise --reward-timeout")
        if "error" in reply:
            raise NumericsError(f"no reward: {reply['error']}", where=self._name(), hint=_HINT)
        return float(reply["reward"])

    def close(self) -> None:
        """End the process and everything it started."""
        self._process = None
        self._end()

    def _ask(self, request: dict[str, Any], *, seconds: float) -> dict[str, Any] | None:
        """Return the reply to one line; None if there is none in time, or the process ended."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None, "it was started"
        try:
            process.stdin.write(json.dumps(request, default=str).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            process.wait()
            return None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    process.wait()
                    return None
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _name(self) -> str:
        return " + ".join(each.describe() for each in self._sources)


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None, "both are pipes"
        with contextlib.suppress(OSError):
            pipe.close()
    # The group holds commands that a reward has started.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
