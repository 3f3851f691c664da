"""The server over HTTP: what it answers, and what it refuses before it reads it.

    POST   /v1/jobs                      {"id": 32 hexadecimal digits}: make a job, or find it
    GET    /v1/jobs/{job}                what it is at
    PUT    /v1/jobs/{job}/shards/{n}     a shard, with Content-Length and Content-Digest
    POST   /v1/jobs/{job}/train          options of prgec side fit: learn from it
    GET    /v1/jobs/{job}/side           the network
    DELETE /v1/jobs/{job}                forget all of it

Every request names its device by a bearer token; a device finds its own jobs only.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from prgec.core.formats.shards import MAX_SHARD_BYTES
from prgec.serve.remote.jobs import NETWORK_NAME
from prgec.serve.remote.tokens import Device, find_device, read_devices
from prgec.serve.remote.wire import DONE, digest_header, digest_of
from prgec.serve.remote.worker import Worker
from prgec.serve.web.body import length_of, read_body
from prgec.serve.web.refusal import HttpError

logger = logging.getLogger(__name__)

_MAX_JSON_BYTES = 4096
# Shards in memory at a time; the others wait in their sockets.
_SHARDS_AT_ONCE = 2


class SideServer:
    """State that the routes share.

    Args:
        store: Folder of everything the server keeps.
        worker: Learns what is queued.
    """

    def __init__(self, store: Path, worker: Worker) -> None:
        self._store = store
        self._worker = worker
        self._jobs = worker.jobs
        self._shards = asyncio.Semaphore(_SHARDS_AT_ONCE)

    def app(self) -> Starlette:
        """Return the application."""
        job = "/v1/jobs/{job}"
        return Starlette(
            routes=[
                Route("/v1/jobs", self._guarded(self._create), methods=["POST"]),
                Route(job, self._guarded(self._show), methods=["GET"]),
                Route(job, self._guarded(self._delete), methods=["DELETE"]),
                Route(job + "/shards/{number:int}", self._guarded(self._put), methods=["PUT"]),
                Route(job + "/train", self._guarded(self._train), methods=["POST"]),
                Route(job + "/side", self._guarded(self._network), methods=["GET"]),
            ]
        )

    def _guarded(self, handle: Callable[[Device, Request], Awaitable[Response]]) -> Any:
        async def guarded(request: Request) -> Response:
            device = None
            try:
                device = await run_in_threadpool(self._device, request)
                return await handle(device, request)
            except HttpError as error:
                name = device.name if device else "unknown device"
                logger.warning("%s: %s %s: %d %s", name, request.method, request.url.path, error.status, error.what)
                # The rest of a refused body is not read.
                return JSONResponse({"error": error.what}, error.status, {"Connection": "close"})
            except (ClientDisconnect, TimeoutError):
                return Response(status_code=408, headers={"Connection": "close"})

        return guarded

    def _device(self, request: Request) -> Device:
        device = find_device(read_devices(self._store), request.headers.get("authorization", ""))
        if device is None:
            raise HttpError(401, "the token is not one of this server's")
        return device

    async def _create(self, device: Device, request: Request) -> Response:
        body = await _read_json(request)
        name = body.get("id")
        if set(body) != {"id"} or not isinstance(name, str):
            raise HttpError(422, "a job is created from its id alone")
        job = await run_in_threadpool(self._jobs.create, device, name)
        return JSONResponse({"id": name, "state": job.state})

    async def _show(self, device: Device, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._status, device, request.path_params["job"]))

    def _status(self, device: Device, name: str) -> dict[str, Any]:
        job = self._jobs.read(device, name)
        measured = self._jobs.folder(device, name) / f"{NETWORK_NAME}.jsonl"
        lines = measured.read_text(encoding="utf-8").splitlines() if measured.exists() else []
        return {
            "id": name,
            "state": job.state,
            "options": job.options,
            "error": job.error,
            "shards": {str(number): digest for number, digest in self._jobs.shards(device, name).items()},
            "epochs": [json.loads(line) for line in lines],
        }

    async def _put(self, device: Device, request: Request) -> Response:
        name, number = request.path_params["job"], request.path_params["number"]
        size = length_of(request, MAX_SHARD_BYTES)
        digest = digest_of(request.headers.get("content-digest", ""))
        known = await run_in_threadpool(self._jobs.shards, device, name)
        if known.get(number) != digest.hex():
            await run_in_threadpool(self._jobs.check_room, device, name, number, size)
        async with self._shards:
            data = await read_body(request, size)
            is_new = await run_in_threadpool(self._jobs.put_shard, device, name, number, data, digest)
        return JSONResponse({"shard": number, "new": is_new}, 201 if is_new else 200)

    async def _train(self, device: Device, request: Request) -> Response:
        options = await _read_json(request)
        job = await run_in_threadpool(self._jobs.queue, device, request.path_params["job"], options)
        self._worker.wake()
        return JSONResponse({"state": job.state}, 202)

    async def _network(self, device: Device, request: Request) -> Response:
        data = await run_in_threadpool(self._packed_network, device, request.path_params["job"])
        headers = {"Content-Digest": digest_header(data)}
        return Response(data, media_type="application/octet-stream", headers=headers)

    def _packed_network(self, device: Device, name: str) -> bytes:
        job = self._jobs.read(device, name)
        if job.state != DONE:
            raise HttpError(409, f"the job is {job.state}; there is a network when it is done")
        return (self._jobs.folder(device, name) / NETWORK_NAME).read_bytes()

    async def _delete(self, device: Device, request: Request) -> Response:
        await run_in_threadpool(self._worker.forget, device, request.path_params["job"])
        return Response(status_code=204)


async def _read_json(request: Request) -> dict[str, Any]:
    data = await read_body(request, length_of(request, _MAX_JSON_BYTES))
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "the body is not JSON") from error
    if not isinstance(body, dict):
        raise HttpError(400, "the body is not a JSON object")
    return body
