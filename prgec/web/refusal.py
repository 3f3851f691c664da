"""How a server says no."""

from __future__ import annotations

from prgec.errors import PrgecError


class HttpError(PrgecError):
    """What a server answers a request with instead of doing it.

    Args:
        status: HTTP status.
        what: One line for whoever asked.
    """

    def __init__(self, status: int, what: str) -> None:
        self.status = status
        super().__init__(what)
