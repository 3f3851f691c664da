"""Damaged requests to the two servers, which are real and run in processes of their own."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
from pathlib import Path
from urllib.parse import urlencode

from prgec.core.formats.shards import pack_shard
from prgec.errors import DataError
from prgec.serve.remote.tokens import add_device
from tests.checks.fuzz_readers import Reader
from tests.formats.test_shards import make_shard
from tests.remote.running import RunningServer
from tests.ui.running import RunningUi

_JOB = "0123456789abcdef" * 2
# Those that start a process are left out: a damaged form that is still a good one would compile a model.
_PAGES = ("/", "/compare?runs=a&runs=b", "/devices", "/devices/x", "/programs", "/programs/new", "/programs/x/try")
_FORMS = ("/runs/0123456789abcdef/stop", "/runs/0123456789abcdef/resume", "/programs/0123456789abcdef/try")
_SECONDS, _PATIENCE = 9.0, 0.2


def http_readers(work: Path, stack: contextlib.ExitStack) -> list[Reader]:
    """Start both servers; return what sends them requests, with good ones to start from.

    Args:
        work: Scratch folder.
        stack: Ends the servers.
    """
    (work / "runs").mkdir()
    page = stack.enter_context(RunningUi(work / "runs"))
    store = work / "store"
    token = add_device(store, "one")
    server = stack.enter_context(RunningServer(store))
    assert page.port is not None and server.port is not None
    head = {"Host": f"127.0.0.1:{page.port}", "Cookie": page.cookie, "Origin": page.origin}
    pages = [_request("GET", path, head) for path in _PAGES]
    form = urlencode({"prompt": "a", "count": "3"}).encode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    pages += [_request("POST", path, {**head, **kind}, form) for path in _FORMS]
    jobs = _jobs(token, server.port)
    return [
        Reader("http-page", lambda path: _send(page.port or 0, path.read_bytes(), pages[0]), pages),
        Reader("http-side", lambda path: _send(server.port or 0, path.read_bytes(), jobs[0]), jobs),
    ]


def _jobs(token: str, port: int) -> list[bytes]:
    head = {"Host": f"127.0.0.1:{port}", "Authorization": f"Bearer {token}"}
    shard = pack_shard(make_shard())
    digest = {"Content-Digest": f"sha-256=:{base64.b64encode(hashlib.sha256(shard).digest()).decode()}:"}
    job = f"/v1/jobs/{_JOB}"
    return [
        _request("POST", "/v1/jobs", head, b'{"id": "%s"}' % _JOB.encode()),
        _request("GET", job, head),
        _request("PUT", f"{job}/shards/0", {**head, **digest}, shard),
        _request("GET", f"{job}/side", head),
        _request("DELETE", job, head),
    ]


def _request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close", "", ""]).encode() + body


def _send(port: int, data: bytes, good: bytes) -> None:
    """Send a request as it is; the server must answer it, hang up or wait for more, and answer a good one after it.

    Raises:
        DataError: If it was refused, or is not whole.
        RuntimeError: If the server failed.
        OSError: If it is gone, or does not answer.
    """
    answer = _answer(port, data, _PATIENCE)
    if answer[9:10] == b"5":
        raise RuntimeError(f"the server answers {answer[:60]!r}")
    if answer[9:10] in (b"2", b"3"):
        return
    if not answer and not _answer(port, good, _SECONDS):
        raise RuntimeError("the server answers no more")
    raise DataError(f"refused by {answer[9:12].decode('ascii', 'replace')!r}")


def _answer(port: int, data: bytes, seconds: float) -> bytes:
    """Return what a server sends until it hangs up or has sent nothing for some seconds."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS) as connection:
        connection.settimeout(seconds)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            connection.sendall(data)
            while part := connection.recv(1 << 16):
                answer += part
    return answer
