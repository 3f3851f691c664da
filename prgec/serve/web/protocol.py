"""uvicorn's HTTP over h11, which hangs up where a request does not come to its end."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

# A head is a few lines: whoever needs longer for it keeps a place from others.
_PATIENCE_S = 5.0


class ImpatientProtocol(H11Protocol):
    """A connection that is closed after 5 seconds without a whole head of a request.

    uvicorn itself waits for ever, so that a few clients that send half a line each take all places there are.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._waiting: asyncio.TimerHandle | None = None
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Wait no more once there is a request."""
        super().handle_events()
        if self._is_busy():
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        if not self._is_busy():
            self._wait()

    def _is_busy(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _wait(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(_PATIENCE_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
