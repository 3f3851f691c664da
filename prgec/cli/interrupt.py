"""Ctrl-C or SIGTERM while something is under way: the first one asks it to finish, the second one ends it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from prgec.cli.render import stderr_console


@contextlib.contextmanager
def stop_on_interrupt(announcement: str) -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM inside the block into a polite request.

    Args:
        announcement: Line on stderr when it is pressed.

    Yields:
        A function that returns whether it has been pressed.
    """
    requested = threading.Event()

    def request(signum: int, frame: FrameType | None) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()
        stderr_console().print(announcement, markup=False)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield requested.is_set
        return
    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requested.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def end_on_terminate() -> Iterator[None]:
    """Let SIGTERM inside the block end it as Ctrl-C does, so that half-written files are removed."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
