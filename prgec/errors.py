"""Every error prgec raises, and the exit code each one becomes.

User errors derive from `PrgecError`: what failed, where, and what to do. Anything else that reaches the
command line is a bug in prgec and is reported as `InternalError`.
"""

from __future__ import annotations

from typing import ClassVar


class PrgecError(Exception):
    """A failure the user can act on, rendered as one line: `what (where). Hint: ...`.

    Args:
        what: The failure, in words that need no knowledge of the code.
        where: File, line, graph node or module path at fault.
        hint: A way out, as an imperative.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: object | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        """Return the message as the user sees it: one line, whatever a file of a stranger has put into it."""
        text = self.what.rstrip(".")
        if self.where is not None:
            text = f"{text} ({self.where})"
        if self.hint:
            text = f"{text}. Hint: {self.hint}"
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))


class UsageError(PrgecError):
    """Flags or options that contradict each other or have impossible values."""

    exit_code = 2


class CheckpointError(PrgecError):
    """A checkpoint folder or hub id that cannot be read."""

    exit_code = 3


class DataError(PrgecError):
    """Training or evaluation rows that cannot be used."""

    exit_code = 4


class ProgramError(PrgecError):
    """A .pte that is not ours, is damaged, or speaks another contract version."""

    exit_code = 5


class PassError(PrgecError):
    """A pass that cannot run, or whose result failed verification."""

    exit_code = 6


class BackendError(PrgecError):
    """A backend that is unavailable here or refuses the graph."""

    exit_code = 7


class NumericsError(PrgecError):
    """A loss or gradient that is not finite; training state was kept."""

    exit_code = 8


class Cancelled(Exception):
    """Raised by a listener, to end what reports to it; never seen by users."""


class InternalError(Exception):
    """A broken invariant inside prgec. Never the user's fault."""

    exit_code: ClassVar[int] = 70
