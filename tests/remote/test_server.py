"""The server, real and in a process of its own: what it refuses, and that two devices know nothing of each other."""

from __future__ import annotations

import base64
import hashlib
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from prgec.core.formats.shards import MAX_SHARD_BYTES, pack_shard
from prgec.serve.remote.tokens import add_device
from tests.formats.test_shards import make_shard
from tests.remote.running import RunningServer

pytest.importorskip("starlette")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server") / "store"


@pytest.fixture(scope="module")
def tokens(store: Path) -> tuple[str, str, str]:
    """A server of two devices, and of one with room for a single small shard."""
    return add_device(store, "one"), add_device(store, "two"), add_device(store, "small", 1000)


@pytest.fixture(scope="module")
def server(store: Path, tokens: tuple[str, str, str]) -> Iterator[RunningServer]:
    with RunningServer(store) as running:
        yield running


@pytest.fixture
def job(server: RunningServer, tokens: tuple[str, str, str]) -> str:
    name = secrets.token_hex(16)
    assert server.request("POST", "/v1/jobs", tokens[0], b'{"id": "%s"}' % name.encode())[0] == 200
    return name


def _digest(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


def _put(
    server: RunningServer, token: str, job: str, data: bytes, number: int | str = 0, digest: str | None = None
) -> tuple[int, str]:
    headers = {"Content_Digest": _digest(data) if digest is None else digest}
    status, answer = server.request("PUT", f"/v1/jobs/{job}/shards/{number}", token, data, **headers)
    return status, str(answer.get("error", ""))


SHARD = pack_shard(make_shard())


def test_a_shard_is_kept_once(server: RunningServer, tokens: tuple[str, ...], job: str) -> None:
    assert _put(server, tokens[0], job, SHARD) == (201, "")
    assert _put(server, tokens[0], job, SHARD) == (200, "")
    _, status = server.request("GET", f"/v1/jobs/{job}", tokens[0])
    assert status["shards"] == {"0": hashlib.sha256(SHARD).hexdigest()} and status["state"] == "open"
    other = pack_shard(make_shard(seed=1))
    assert _put(server, tokens[0], job, other) == (409, "the job has another shard 0 already")
    assert _put(server, tokens[0], job, other, 1) == (201, "")


@pytest.mark.parametrize("method,path", [("GET", ""), ("GET", "/side"), ("DELETE", ""), ("POST", "/train")])
def test_a_job_is_its_devices_alone(
    server: RunningServer, tokens: tuple[str, ...], job: str, method: str, path: str
) -> None:
    """Another device's job looks just like one that never was."""
    answers = [
        server.request(method, f"/v1/jobs/{name}{path}", tokens[1], b"{}") for name in (job, secrets.token_hex(16))
    ]
    assert answers[0] == answers[1] == (404, {"error": "there is no such job"})
    assert _put(server, tokens[1], job, SHARD) == (404, "there is no such job")
    assert server.request("GET", f"/v1/jobs/{job}", tokens[0])[0] == 200


@pytest.mark.parametrize("token", [None, "", "x" * 43])
def test_strangers(server: RunningServer, job: str, token: str | None) -> None:
    for method, path in (("GET", f"/v1/jobs/{job}"), ("POST", "/v1/jobs"), ("PUT", f"/v1/jobs/{job}/shards/0")):
        assert server.request(method, path, token, b"{}")[0] == 401


def _spoiled() -> dict[str, bytes]:
    shard = make_shard()
    shard.acts[0, 0, 0, 0] = np.nan
    return {
        "nan": pack_shard(shard),
        "cut": SHARD[:-1],
        "longer": SHARD + b"\0",
        "empty": b"",
        "pickle": b"\x80\x04\x95" + bytes(100),
        "text": b"hello",
    }


@pytest.mark.parametrize("kind", _spoiled())
def test_what_is_no_shard_is_not_kept(
    server: RunningServer, tokens: tuple[str, ...], job: str, store: Path, kind: str
) -> None:
    data = _spoiled()[kind]
    assert _put(server, tokens[0], job, data)[0] == 422
    folder = next(store.glob(f"jobs/*/{job}/shards"))
    assert list(folder.iterdir()) == []
    assert "one: PUT" in server.log()


def test_a_shard_of_another_program(server: RunningServer, tokens: tuple[str, ...], job: str) -> None:
    from dataclasses import replace

    assert _put(server, tokens[0], job, SHARD)[0] == 201
    shard = make_shard(seed=2)
    foreign = pack_shard(replace(shard, shape=replace(shard.shape, program="99" * 32)))
    assert _put(server, tokens[0], job, foreign, 1) == (
        409,
        "the shard is of another program or task than the job's first one",
    )


@pytest.mark.parametrize("digest", ["", "sha-256=abc", "md5=:AAAA:", "sha-256=:" + "A" * 43 + "=:", "sha-256=:é:"])
def test_digests(server: RunningServer, tokens: tuple[str, ...], job: str, digest: str) -> None:
    assert _put(server, tokens[0], job, SHARD, digest=digest)[0] == 400


@pytest.mark.parametrize("number", ["-1", "65536", "x", "0/../../../x", "99999999999999999999"])
def test_numbers(server: RunningServer, tokens: tuple[str, ...], job: str, number: str) -> None:
    assert _put(server, tokens[0], job, SHARD, number)[0] in (404, 422)


def test_quota(server: RunningServer, tokens: tuple[str, ...]) -> None:
    name = secrets.token_hex(16)
    assert server.request("POST", "/v1/jobs", tokens[2], b'{"id": "%s"}' % name.encode())[0] == 200
    assert _put(server, tokens[2], name, SHARD)[0] == 201
    assert _put(server, tokens[2], name, pack_shard(make_shard(seed=3)), 1) == (
        507,
        "the device's quota of 1000 bytes is spent",
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{", 400),
        (b"[" * 4000, 400),
        (b"{}", 422),
        (b'{"id": 3}', 422),
        (b'{"id": "../../../../tmp/x"}', 422),
        (b'{"id": "' + b"A" * 32 + b'"}', 422),
        (b'{"id": "' + b"a" * 32 + b'", "x": 1}', 422),
        (b" " * 5000, 413),
    ],
)
def test_bodies(server: RunningServer, tokens: tuple[str, ...], body: bytes, status: int) -> None:
    assert server.request("POST", "/v1/jobs", tokens[0], body)[0] == status


@pytest.mark.parametrize(
    "options",
    [
        b'{"epochs": 1001}',
        b'{"epochs": "3"}',
        b'{"epochs": true}',
        b'{"lr": NaN}',
        b'{"lr": -1}',
        b'{"rank": 100000}',
        b'{"output": "/etc/passwd"}',
        b'{"norm": "x"}',
    ],
)
def test_options(server: RunningServer, tokens: tuple[str, ...], job: str, options: bytes) -> None:
    _put(server, tokens[0], job, SHARD)
    assert server.request("POST", f"/v1/jobs/{job}/train", tokens[0], options)[0] == 422
    assert server.request("GET", f"/v1/jobs/{job}", tokens[0])[1]["state"] == "open"


def test_nothing_to_learn_from(server: RunningServer, tokens: tuple[str, ...], job: str) -> None:
    assert server.request("POST", f"/v1/jobs/{job}/train", tokens[0], b"{}")[0] == 409
    assert server.request("GET", f"/v1/jobs/{job}/side", tokens[0])[0] == 409


def _raw(server: RunningServer, text: bytes, *, wait: float = 10.0) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        connection.sendall(text)
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except (TimeoutError, ConnectionResetError):
            pass
        return received


@pytest.mark.parametrize("length", [str(MAX_SHARD_BYTES + 1), "9" * 30])
def test_too_large_is_refused_before_a_byte_is_read(
    server: RunningServer, tokens: tuple[str, ...], job: str, length: str
) -> None:
    head = f"PUT /v1/jobs/{job}/shards/0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tokens[0]}\r\n"
    started = time.monotonic()
    answer = _raw(server, f"{head}Content-Digest: {_digest(b'')}\r\nContent-Length: {length}\r\n\r\n".encode())
    assert answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))
    assert time.monotonic() - started < 5


def test_no_length_and_broken_heads(server: RunningServer, tokens: tuple[str, ...], job: str) -> None:
    head = f"PUT /v1/jobs/{job}/shards/0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tokens[0]}\r\n"
    chunked = _raw(server, f"{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".encode())
    assert chunked.startswith(b"HTTP/1.1 411")
    for text in (
        b"\0" * 5000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"X" * 40000,
        b"GET /v1/jobs/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        _raw(server, text, wait=2.0)
    assert server.request("GET", f"/v1/jobs/{job}", tokens[0])[0] == 200


def test_a_device_that_vanishes_leaves_nothing(
    server: RunningServer, tokens: tuple[str, ...], job: str, store: Path
) -> None:
    head = f"PUT /v1/jobs/{job}/shards/0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tokens[0]}\r\n"
    head += f"Content-Digest: {_digest(SHARD)}\r\nContent-Length: {len(SHARD)}\r\n\r\n"
    for cut in (0, 1, len(SHARD) // 2, len(SHARD) - 1):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head.encode() + SHARD[:cut])
    time.sleep(0.3)
    assert list(next(store.glob(f"jobs/*/{job}/shards")).iterdir()) == []
    assert _put(server, tokens[0], job, SHARD)[0] == 201


def test_delete(server: RunningServer, tokens: tuple[str, ...], job: str, store: Path) -> None:
    _put(server, tokens[0], job, SHARD)
    assert server.request("DELETE", f"/v1/jobs/{job}", tokens[0])[0] == 204
    assert server.request("GET", f"/v1/jobs/{job}", tokens[0])[0] == 404
    assert not list(store.glob(f"jobs/*/*{job}*"))
