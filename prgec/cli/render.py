"""Where output goes: results and JSON to stdout, progress and log lines to stderr."""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console


@functools.cache
def stderr_console() -> Console:
    """Return the console for progress and warnings; one object, so that log lines do not tear a live display."""
    return Console(stderr=True, highlight=False)


@functools.cache
def stdout_console() -> Console:
    """Return the console for results that people read."""
    return Console(highlight=False, soft_wrap=True)


def print_json(document: Mapping[str, Any]) -> None:
    """Write one JSON document, and nothing else, to stdout.

    Raises:
        ValueError: If the document holds NaN or an infinity, which JSON cannot express.
    """
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_lines(*lines: str) -> None:
    """Write plain result lines to stdout, untouched by markup or wrapping."""
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_part(text: str) -> None:
    """Write part of a line to stdout, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


class _ConsoleHandler(logging.Handler):
    """Render prgec's log records as `warning: ...` lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        stderr_console().print(text, markup=False, soft_wrap=True)


def configure_logging(*, debug: bool) -> None:
    """Send records of the `prgec` logger to stderr, once per process.

    Args:
        debug: Show records of every level instead of warnings and above.
    """
    logger = logging.getLogger("prgec")
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)
    if not any(isinstance(handler, _ConsoleHandler) for handler in logger.handlers):
        logger.addHandler(_ConsoleHandler())
