"""Listeners to work that takes many calls of a program."""

from __future__ import annotations

from collections.abc import Callable

# Called with (parts done, all parts) after every call of a program. It may raise to end the work: `Cancelled` where
# the caller goes on.
CallListener = Callable[[int, int], None]


def ignore(done: int, total: int) -> None:
    """Listen to nothing."""
