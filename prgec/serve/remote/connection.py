"""Requests of a device to its server.

Every request may be made twice, so a connection that breaks is no more than a pause.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prgec.errors import PrgecError, UsageError
from prgec.serve.web.listening import is_loopback

_MAX_ANSWER_BYTES = 4 << 30
_TIMEOUT_S = 60.0
_TRIES = 6


@dataclass(frozen=True)
class Server:
    """A server as a device reaches it.

    Attributes:
        url: `https://host:port`; `http` on this machine alone.
        token: The device's.
        ca: Certificates to trust as PEM; None for the system's.
    """

    url: str
    token: str
    ca: Path | None = None

    def check(self) -> None:
        """Refuse to send a token in the clear.

        Raises:
            UsageError: If the URL is none, or has no TLS on a network.
        """
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise UsageError(f"--server {self.url!r} is not an address; expected https://HOST:PORT")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise UsageError("a server on a network is reached by https", hint="http is for 127.0.0.1 alone")
        if self.ca is not None and not self.ca.is_file():
            raise UsageError("there is no such file of certificates", where=self.ca)
        if not self.token.isascii() or not self.token.isprintable() or not self.token:
            raise UsageError("the token is empty, or not a single line of text")

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, Mapping[str, str]]:
        """Make a request, again while the connection breaks; return the answer's body and headers.

        Raises:
            PrgecError: If the server refuses, or cannot be reached.
        """
        problem = ""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(min(8.0, 0.25 * 2**attempt))
            try:
                status, answer, found = self._once(method, path, body, headers or {})
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise PrgecError(f"the server's certificate is not trusted: {error.verify_message}") from error
                problem = str(error) or type(error).__name__
                continue
            if status < 300:
                return answer, found
            if status in (408, 502, 503, 504):
                problem = f"it answers {status}"
                continue
            raise PrgecError(f"the server refuses: {_reason(answer, status)}", where=f"{method} {path}")
        raise PrgecError(f"the server cannot be reached: {problem}", where=self.url, hint="the same command goes on")

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make a request with a JSON body, or none, and return the JSON answer.

        Raises:
            PrgecError: As `request`, or if the answer is none.
        """
        answer, _ = self.request(method, path, b"" if body is None else json.dumps(body).encode())
        try:
            found = json.loads(answer) if answer else {}
        except ValueError as error:
            raise PrgecError("the server's answer is not JSON", where=self.url) from error
        if not isinstance(found, dict):
            raise PrgecError("the server's answer is not a JSON object", where=self.url)
        return found

    def _once(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes, Mapping[str, str]]:
        connection = self._connection()
        try:
            sent = {"Authorization": f"Bearer {self.token}", "Content-Length": str(len(body)), **headers}
            try:
                connection.request(method, path, body or None, sent)
            except (BrokenPipeError, ConnectionResetError):
                # A server that refuses a body does not read it; its answer may be there all the same.
                if connection.sock is None:
                    raise
            response = connection.getresponse()
            return response.status, response.read(_MAX_ANSWER_BYTES), dict(response.getheaders())
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        context = ssl.create_default_context(cafile=self.ca)
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S, context=context)


def _reason(answer: bytes, status: int) -> str:
    try:
        return str(json.loads(answer)["error"])[:200]
    except (ValueError, KeyError, TypeError):
        return f"it answers {status}"
