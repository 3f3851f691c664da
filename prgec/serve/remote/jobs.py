"""Jobs on the server's disk: a folder for each, of one device, which holds all there is to know after a power cut.

A shard is stored whole or not at all: it is checked under another name and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from prgec.core.formats.shards import ShardShape, unpack_shard
from prgec.core.machine.files import rename, write_atomic
from prgec.errors import DataError, UsageError
from prgec.serve.remote.tokens import Device
from prgec.serve.remote.wire import DONE, FAILED, OPEN, QUEUED, TRAINING
from prgec.serve.side.fit_options import FitOptions
from prgec.serve.web.refusal import HttpError

MAX_SHARDS = 1 << 16
MAX_JOBS = 100
# Limits of one device's job, since others wait for the machine.
_MOST = {"rank": 1024, "epochs": 1000, "batch_size": 4096}
_JOB = re.compile(r"[0-9a-f]{32}")
_STATE = "job.json"
NETWORK_NAME = "side.safetensors"
_FIELDS = {each.name: each for each in fields(FitOptions)}


@dataclass(frozen=True)
class JobState:
    """The state of a job.

    Attributes:
        state: Row of `STATES`.
        options: Options of the fit; the others have their defaults.
        error: Why it failed.
        order: Place in the queue: larger numbers came later.
    """

    state: str = OPEN
    options: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    order: int = 0

    def fit_options(self) -> FitOptions:
        """Return the options as `fit` takes them.

        Raises:
            HttpError: If one is unknown, of another type, or beyond what a device may ask.
        """
        for name, value in self.options.items():
            known = _FIELDS.get(name)
            if known is None:
                raise HttpError(422, f"there is no option {name[:40]!r}")
            wanted = {"int": (int,), "float": (int, float), "str": (str,)}[str(known.type)]
            if type(value) not in wanted or (name in _MOST and value > _MOST[name]):
                raise HttpError(422, f"option {name} has an impossible value")
        options = FitOptions(**self.options)
        try:
            options.check()
        except UsageError as error:
            raise HttpError(422, error.what) from error
        return options


class JobStore:
    """All jobs of a server; its methods may be called from several threads.

    Args:
        root: Folder of the store.
    """

    def __init__(self, root: Path) -> None:
        self._root = root / "jobs"
        self._lock = threading.RLock()

    def create(self, device: Device, name: str) -> JobState:
        """Make a job, or find the one of that name.

        Raises:
            HttpError: If the name is none, or the device has too many.
        """
        if not _JOB.fullmatch(name):
            raise HttpError(422, "a job's id is 32 hexadecimal digits")
        with self._lock:
            folder = self._root / device.folder / name
            if not (folder / _STATE).exists():
                if len(self.names(device)) >= MAX_JOBS:
                    raise HttpError(429, f"the device has {MAX_JOBS} jobs already; delete one")
                (folder / "shards").mkdir(parents=True, exist_ok=True)
                self._write(folder, JobState())
            return self.read(device, name)

    def names(self, device: Device) -> list[str]:
        """Return the jobs of a device."""
        return sorted(path.parent.name for path in (self._root / device.folder).glob(f"*/{_STATE}"))

    def read(self, device: Device, name: str) -> JobState:
        """Return a job.

        Raises:
            HttpError: If the device has none of that name.
        """
        return _read(self.folder(device, name))

    def folder(self, device: Device, name: str) -> Path:
        """Return where a job is.

        Raises:
            HttpError: If the device has none of that name.
        """
        folder = self._root / device.folder / name
        if not _JOB.fullmatch(name) or not (folder / _STATE).exists():
            raise HttpError(404, "there is no such job")
        return folder

    def shards(self, device: Device, name: str) -> dict[int, str]:
        """Return the SHA-256 of each shard of a job, in hexadecimal digits."""
        folder = self.folder(device, name) / "shards"
        return {
            int(path.stem.removeprefix("shard-")): path.read_text() for path in sorted(folder.glob("shard-*.sha256"))
        }

    def used_bytes(self, device: Device) -> int:
        """Return the size of all shards of a device."""
        sizes = []
        for path in (self._root / device.folder).glob("*/shards/shard-*.safetensors"):
            with contextlib.suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        return sum(sizes)

    def check_room(self, device: Device, name: str, number: int, num_bytes: int) -> None:
        """Refuse a shard that has no place.

        Raises:
            HttpError: If the job takes no shards, or the device's quota is spent.
        """
        job = self.read(device, name)
        if job.state in (QUEUED, TRAINING):
            raise HttpError(409, "a network is being learnt from the job; wait until it is done")
        if not 0 <= number < MAX_SHARDS:
            raise HttpError(422, f"shards are numbered from 0 to {MAX_SHARDS - 1}")
        if self.used_bytes(device) + num_bytes > device.quota_bytes:
            raise HttpError(507, f"the device's quota of {device.quota_bytes} bytes is spent")

    def put_shard(self, device: Device, name: str, number: int, data: bytes, digest: bytes) -> bool:
        """Check and keep a shard; return whether it is new.

        Args:
            device: Owner of the job.
            name: The job.
            number: Number of the shard.
            data: Its bytes.
            digest: Expected SHA-256 of the bytes.

        Raises:
            HttpError: If it is damaged, no shard, of another program than the others, or another one of that number.
        """
        if hashlib.sha256(data).digest() != digest:
            raise HttpError(400, "the shard's bytes are not those of its Content-Digest")
        try:
            shape = unpack_shard(data, f"shard {number}").shape
        except DataError as error:
            raise HttpError(422, error.what) from error
        with self._lock:
            known = self.shards(device, name).get(number)
            if known is not None:
                if known != digest.hex():
                    raise HttpError(409, f"the job has another shard {number} already")
                return False
            self.check_room(device, name, number, len(data))
            folder = self.folder(device, name)
            self._check_shape(folder, shape)
            path = folder / "shards" / f"shard-{number:05d}.safetensors"
            write_atomic(path, data)
            # Only what has a hash counts.
            write_atomic(path.with_suffix(".sha256"), digest.hex().encode())
            return True

    def _check_shape(self, folder: Path, shape: ShardShape) -> None:
        path = folder / "shape.json"
        if not path.exists():
            write_atomic(path, json.dumps(asdict(shape)).encode())
        elif json.loads(path.read_text()) != asdict(shape):
            raise HttpError(409, "the shard is of another program or task than the job's first one")

    def queue(self, device: Device, name: str, options: dict[str, Any]) -> JobState:
        """Ask for a job to be learnt; asking twice is asking once.

        Raises:
            HttpError: If there is nothing to learn from, or it is being learnt with other options.
        """
        with self._lock:
            job = self.read(device, name)
            if job.options == options and job.state in (QUEUED, TRAINING, DONE):
                return job
            if job.state in (QUEUED, TRAINING):
                raise HttpError(409, "the job is being learnt with other options")
            if not self.shards(device, name):
                raise HttpError(409, "the job has no shards")
            last = max((each.order for _, each in self._all()), default=0)
            queued = JobState(QUEUED, options, order=last + 1)
            queued.fit_options()
            self._write(self.folder(device, name), queued)
            return queued

    def next_queued(self) -> Path | None:
        """Return the folder of the job that has waited longest and let it be learnt; None where none waits."""
        with self._lock:
            waiting = [(job.order, folder) for folder, job in self._all() if job.state in (QUEUED, TRAINING)]
            if not waiting:
                return None
            _, folder = min(waiting)
            self._write(folder, JobState(**{**asdict(_read(folder)), "state": TRAINING}))
            return folder

    def finish(self, folder: Path, error: str = "") -> None:
        """Write what became of a job that was learnt, unless it was deleted meanwhile."""
        with self._lock:
            if (folder / _STATE).exists():
                job = _read(folder)
                self._write(folder, JobState(FAILED if error else DONE, job.options, error, job.order))

    def delete(self, device: Device, name: str) -> Path:
        """Remove a job and all it holds; return where it was.

        Raises:
            HttpError: If the device has none of that name.
        """
        with self._lock:
            folder = self.folder(device, name)
            # It is gone at once; what is left of it is nobody's.
            grave = folder.with_name(f".{name}.deleted")
            rename(folder, grave)
        shutil.rmtree(grave, ignore_errors=True)
        return folder

    def sweep(self) -> None:
        """Remove what a server that was killed left of deleted jobs and of shards."""
        for grave in self._root.glob("*/.*.deleted"):
            shutil.rmtree(grave, ignore_errors=True)
        for folder in self._root.glob("*/*/shards"):
            for path in folder.iterdir():
                is_whole = path.suffix == ".sha256" or path.with_suffix(".sha256").exists()
                if path.name.startswith(".") or not is_whole:
                    path.unlink(missing_ok=True)

    def _all(self) -> Iterator[tuple[Path, JobState]]:
        for path in sorted(self._root.glob(f"*/*/{_STATE}")):
            yield path.parent, _read(path.parent)

    def _write(self, folder: Path, job: JobState) -> None:
        write_atomic(folder / _STATE, json.dumps(asdict(job)).encode())


def options_of_folder(folder: Path) -> FitOptions:
    """Return what a job is learnt with.

    Raises:
        HttpError: If its options are impossible.
    """
    return _read(folder).fit_options()


def _read(folder: Path) -> JobState:
    return JobState(**json.loads((folder / _STATE).read_text(encoding="utf-8")))
