"""The error by which a server refuses a request."""

from __future__ import annotations

from prgec.errors import PrgecError


class HttpError(PrgecError):
    """A refusal, sent in place of an answer.

    Args:
        status: HTTP status.
        what: One line for the client.
    """

    def __init__(self, status: int, what: str) -> None:
        self.status = status
        super().__init__(what)
