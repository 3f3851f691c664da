"""Bodies of requests, whose size is known before any of it is read."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from prgec.serve.web.refusal import HttpError

# A client that sends nothing for this long has gone.
_PATIENCE_S = 30.0


def length_of(request: Request, most: int) -> int:
    """Return the size a body says it has, before any of it is read.

    Raises:
        HttpError: If it does not say, or has more than `most` bytes.
    """
    text = request.headers.get("content-length", "")
    if not (text.isascii() and text.isdigit()) or "transfer-encoding" in request.headers:
        raise HttpError(411, "a Content-Length is needed")
    if len(text) > 12 or int(text) > most:
        raise HttpError(413, f"the body is larger than {most} bytes")
    return int(text)


async def read_body(request: Request, size: int) -> bytes:
    """Return a body of so many bytes.

    Raises:
        HttpError: If it is longer.
        TimeoutError: If nothing comes for long.
    """
    parts = bytearray()
    stream = request.stream().__aiter__()
    while True:
        try:
            parts += await asyncio.wait_for(anext(stream), _PATIENCE_S)
        except StopAsyncIteration:
            break
        if len(parts) > size:
            raise HttpError(400, "the body is longer than its Content-Length")
    return bytes(parts)
