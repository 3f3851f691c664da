"""Sends shards from a thread of its own, while the device computes the next one."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from prgec.serve.remote.client import ServerJob, open_job
from prgec.serve.remote.connection import Server


class Sender:
    """A folder's shards on their way, one after the other; a context manager that waits for the last.

    Args:
        server: Destination.
        folder: Existing folder of the shards.

    Raises:
        PrgecError: If the server refuses, or cannot be reached.
    """

    def __init__(self, server: Server, folder: Path) -> None:
        server.check()
        self._job: ServerJob = open_job(server, folder)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="send")
        self._sent: list[Future[int]] = []

    def put(self, path: Path) -> None:
        """Send a file that is complete, when those before it are sent.

        Raises:
            PrgecError: If the server refused a shard.
        """
        for each in self._sent:
            if each.done():
                each.result()
        self._sent.append(self._thread.submit(self._job.send, path))

    @property
    def num_bytes(self) -> int:
        """Bytes that were sent; waits for the last of them.

        Raises:
            PrgecError: If the server refused a shard.
        """
        return sum(each.result() for each in self._sent)

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After a failure no shard is sent but the one on its way.
        self._thread.shutdown(wait=True, cancel_futures=kind is not None)
