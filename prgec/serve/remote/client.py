"""The device's end: sends shards that the server lacks, asks for a network, and fetches it."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.core.formats.shards import MAX_SHARD_BYTES, unpack_shard
from prgec.core.formats.side_network import unpack_network
from prgec.core.machine.files import write_atomic
from prgec.errors import DataError, PrgecError
from prgec.serve.remote.connection import Server
from prgec.serve.remote.wire import DONE, FAILED, digest_header, digest_of
from prgec.serve.side.cache import SHARD_GLOB

# Which job the shards of a folder are of; stays on the device.
JOB_NAME = "job.json"
_POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """The result of sending.

    Attributes:
        job: The job's id.
        num_shards: Shards the job has now.
        num_sent: Those that were sent by this call.
        num_bytes: Their size.
        seconds: Wall time.
        state: State of the job.
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
        folder: Folder that prgec side emit wrote.
        options: Options of the fit; None to send only.
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
    job = open_job(server, folder)
    num_sent = num_bytes = 0
    for done, path in enumerate(paths, start=1):
        size = job.send(path)
        num_sent, num_bytes = num_sent + (size > 0), num_bytes + size
        on_shard(done, len(paths))
    if options is not None:
        server.json("POST", f"/v1/jobs/{job.id}/train", options)
    state = str(server.json("GET", f"/v1/jobs/{job.id}").get("state"))
    return Pushed(
        job=job.id,
        num_shards=len(paths),
        num_sent=num_sent,
        num_bytes=num_bytes,
        seconds=time.monotonic() - started,
        state=state,
    )


@dataclass(frozen=True)
class ServerJob:
    """A folder's job on a server.

    Attributes:
        server: Where it is.
        id: Its id on the server.
        known: Hashes of the shards it had when it was opened, by number.
    """

    server: Server
    id: str
    known: Mapping[str, str]

    def send(self, path: Path) -> int:
        """Send a shard unless the server has it; return how many bytes were sent.

        Raises:
            DataError: If the shard is damaged.
            PrgecError: If the server refuses, or cannot be reached.
        """
        data = _shard_bytes(path)
        number = int(path.stem.removeprefix("shard-"))
        if self.known.get(str(number)) == hashlib.sha256(data).hexdigest():
            return 0
        headers = {"Content-Digest": digest_header(data), "Content-Type": "application/octet-stream"}
        self.server.request("PUT", f"/v1/jobs/{self.id}/shards/{number}", data, headers)
        return len(data)


def open_job(server: Server, folder: Path) -> ServerJob:
    """Make a folder's job, or find it.

    Raises:
        PrgecError: If the server refuses, or cannot be reached.
    """
    job = job_of(folder, make=True)
    server.json("POST", "/v1/jobs", {"id": job})
    return ServerJob(server, job, server.json("GET", f"/v1/jobs/{job}").get("shards", {}))


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
        folder: Folder that was pushed.
        output: File to write.
        wait: Whether to wait until the job is done.
        on_status: Called with what the server says of the job.
        should_stop: Checked while it waits.

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
    """Return the id of a folder's job; it is on the disk before the server receives it.

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
    # A shard that the server would refuse is not sent.
    unpack_shard(data, path)
    return data
