"""The device's end: sends shards that the server lacks, asks for a network, and fetches it.

Every request may be made twice, so a connection that breaks is no more than a pause.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prgec.errors import DataError, PrgecError, UsageError
from prgec.formats.shards import MAX_SHARD_BYTES, unpack_shard
from prgec.formats.side_network import unpack_network
from prgec.machine.files import write_atomic
from prgec.remote.serve import is_loopback
from prgec.remote.wire import DONE, FAILED, digest_header, digest_of
from prgec.side.cache import SHARD_GLOB

# Which job the shards of a folder are of; stays on the device.
JOB_NAME = "job.json"
_MAX_ANSWER_BYTES = 4 << 30
_TIMEOUT_S = 60.0
_TRIES = 6
_POLL_S = 1.0


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
            raise UsageError(f"--server {self.url!r} is no address; expected https://HOST:PORT")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise UsageError("a server on a network is reached by https", hint="http is for 127.0.0.1 alone")
        if self.ca is not None and not self.ca.is_file():
            raise UsageError("there is no such file of certificates", where=self.ca)
        if not self.token.isascii() or not self.token.isprintable() or not self.token:
            raise UsageError("the token is empty, or no text of one line")

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


@dataclass(frozen=True)
class Pushed:
    """What was sent.

    Attributes:
        job: The job's id.
        num_shards: Shards the job has now.
        num_sent: Those that were sent by this call.
        num_bytes: Their size.
        seconds: Wall time.
        state: What the job is at.
    """

    job: str
    num_shards: int
    num_sent: int
    num_bytes: int
    seconds: float
    state: str


def push(
    server: Server,
    folder: Path,
    options: Mapping[str, Any] | None,
    on_shard: Callable[[int, int], None] = lambda done, total: None,
) -> Pushed:
    """Send the shards of a folder that the server lacks; nothing else of the folder.

    Args:
        server: Where to.
        folder: What prgec side emit wrote.
        options: What to learn with; None to send only.
        on_shard: Called with (shards done, all shards).

    Raises:
        DataError: If a shard is damaged.
        PrgecError: If the server refuses, or cannot be reached.
    """
    started = time.monotonic()
    server.check()
    paths = sorted(folder.glob(SHARD_GLOB))
    if not paths:
        raise DataError("the folder has no shards", where=folder, hint="prgec side emit writes them")
    job = job_of(folder, make=True)
    server.json("POST", "/v1/jobs", {"id": job})
    known = server.json("GET", f"/v1/jobs/{job}").get("shards", {})
    num_sent = num_bytes = 0
    for done, path in enumerate(paths, start=1):
        data = _shard_bytes(path)
        number = int(path.stem.removeprefix("shard-"))
        if known.get(str(number)) != hashlib.sha256(data).hexdigest():
            headers = {"Content-Digest": digest_header(data), "Content-Type": "application/octet-stream"}
            server.request("PUT", f"/v1/jobs/{job}/shards/{number}", data, headers)
            num_sent, num_bytes = num_sent + 1, num_bytes + len(data)
        on_shard(done, len(paths))
    if options is not None:
        server.json("POST", f"/v1/jobs/{job}/train", options)
    state = str(server.json("GET", f"/v1/jobs/{job}").get("state"))
    return Pushed(job, len(paths), num_sent, num_bytes, time.monotonic() - started, state)


def pull(
    server: Server,
    folder: Path,
    output: Path,
    *,
    wait: bool = True,
    on_status: Callable[[dict[str, Any]], None] = lambda status: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> int | None:
    """Fetch the network that was learnt from a folder's shards; return its size, None if it was stopped.

    Args:
        server: Where from.
        folder: What was pushed.
        output: File to write.
        wait: Whether to wait until the job is done.
        on_status: Called with what the server says of the job.
        should_stop: Asked while it waits.

    Raises:
        PrgecError: If there is none, it is damaged, or the server cannot be reached.
    """
    server.check()
    job = job_of(folder, make=False)
    while not _is_done(server, job, on_status):
        if not wait:
            raise PrgecError("the job is not done yet", hint="prgec side pull --wait waits for it")
        if should_stop():
            return None
        time.sleep(_POLL_S)
    data, headers = server.request("GET", f"/v1/jobs/{job}/side")
    found = {name.lower(): value for name, value in headers.items()}
    if digest_of(found.get("content-digest", "")) != hashlib.sha256(data).digest():
        raise DataError("the network is damaged: its bytes are not those of its Content-Digest", where=server.url)
    unpack_network(data, server.url)
    write_atomic(output, data)
    return len(data)


def _is_done(server: Server, job: str, on_status: Callable[[dict[str, Any]], None]) -> bool:
    status = server.json("GET", f"/v1/jobs/{job}")
    on_status(status)
    if status.get("state") == FAILED:
        raise PrgecError(f"the server could not learn a network: {status.get('error')}")
    return status.get("state") == DONE


def forget(server: Server, folder: Path) -> None:
    """Delete a folder's job on the server, and all it holds there.

    Raises:
        PrgecError: If there is none, or the server cannot be reached.
    """
    server.check()
    server.request("DELETE", f"/v1/jobs/{job_of(folder, make=False)}")
    (folder / JOB_NAME).unlink()


def job_of(folder: Path, *, make: bool) -> str:
    """Return the id of a folder's job; it is on the disk before the server hears of it.

    Raises:
        DataError: If the folder was never pushed, or its file is damaged.
    """
    path = folder / JOB_NAME
    if path.exists():
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError("the folder's job cannot be read", where=path, hint="remove the file") from error
    if not make:
        raise DataError("the folder was not pushed", where=folder, hint="prgec side push sends it")
    job = secrets.token_hex(16)
    write_atomic(path, json.dumps({"id": job}).encode())
    return job


def _shard_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_SHARD_BYTES + 1)
    # What the server would refuse is not sent.
    unpack_shard(data, path)
    return data


def _reason(answer: bytes, status: int) -> str:
    try:
        return str(json.loads(answer)["error"])[:200]
    except (ValueError, KeyError, TypeError):
        return f"it answers {status}"
