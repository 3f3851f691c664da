"""The protocol shared by both ends of a connection: states of a job, and digests."""

from __future__ import annotations

import base64
import contextlib
import hashlib

from prgec.serve.web.refusal import HttpError

OPEN, QUEUED, TRAINING, DONE, FAILED = STATES = ("open", "queued", "training", "done", "failed")


def digest_of(header: str) -> bytes:
    """Return the SHA-256 in a `Content-Digest` header: `sha-256=:base64:`.

    Raises:
        HttpError: If it has none.
    """
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "sha-256" and len(value) == 46 and value[0] == value[-1] == ":":
            with contextlib.suppress(ValueError):
                return base64.b64decode(value[1:-1], validate=True)
    raise HttpError(400, "a Content-Digest with sha-256 is needed")


def digest_header(data: bytes) -> str:
    """Return the `Content-Digest` of bytes."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"
