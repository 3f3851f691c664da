"""What both ends of the line know: states of a job, digests, and how a server says no."""

from __future__ import annotations

import base64
import contextlib
import hashlib

from prgec.errors import PrgecError

OPEN, QUEUED, TRAINING, DONE, FAILED = STATES = ("open", "queued", "training", "done", "failed")


class RemoteError(PrgecError):
    """What a server answers a request with instead of doing it.

    Args:
        status: HTTP status.
        what: One line for the device.
    """

    def __init__(self, status: int, what: str) -> None:
        self.status = status
        super().__init__(what)


def digest_of(header: str) -> bytes:
    """Return the SHA-256 in a `Content-Digest` header: `sha-256=:base64:`.

    Raises:
        RemoteError: If it has none.
    """
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "sha-256" and len(value) == 46 and value[0] == value[-1] == ":":
            with contextlib.suppress(ValueError):
                return base64.b64decode(value[1:-1], validate=True)
    raise RemoteError(400, "a Content-Digest with sha-256 is needed")


def digest_header(data: bytes) -> str:
    """Return the `Content-Digest` of bytes."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"
