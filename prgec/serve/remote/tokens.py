"""Access to the server: one bearer token a device, kept as a hash, with a quota.

Tokens are 32 random bytes, so one round of SHA-256 is as hard to turn around as any number of rounds.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from prgec.core.machine.files import write_atomic
from prgec.errors import DataError, UsageError

_NAME = "devices.json"
_TOKEN_BYTES = 32
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DEFAULT_QUOTA = 4 << 30


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        name: The operator's name of it.
        token_sha256: Hash of its token.
        quota_bytes: Most bytes of all its shards together.
    """

    name: str
    token_sha256: str
    quota_bytes: int

    @property
    def folder(self) -> str:
        """Name of its folder of jobs; it follows from the name alone, so that a new token finds the old jobs."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:32]


def add_device(store: Path, name: str, quota_bytes: int = DEFAULT_QUOTA) -> str:
    """Return a new token for a device; an old one is good for nothing from now on.

    Raises:
        UsageError: If the name or the quota is impossible.
    """
    if not _DEVICE.fullmatch(name):
        raise UsageError(f"{name!r} is not a name of a device; expected letters, digits, dots, dashes and underscores")
    if quota_bytes < 1:
        raise UsageError(f"the quota is {quota_bytes} bytes; expected at least 1")
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    devices = {each.name: each for each in read_devices(store)}
    devices[name] = Device(name, _hash(token), quota_bytes)
    store.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(store / _NAME, (json.dumps([asdict(each) for each in devices.values()], indent=2) + "\n").encode())
    return token


def read_devices(store: Path) -> tuple[Device, ...]:
    """Return all devices; none where none was added.

    Raises:
        DataError: If the file is damaged.
    """
    path = store / _NAME
    if not path.exists():
        return ()
    try:
        return tuple(Device(**each) for each in json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(f"the server's list of devices is damaged: {error}", where=path) from error


def find_device(devices: tuple[Device, ...], authorization: str) -> Device | None:
    """Return whose token an `Authorization` header has; None for nobody's. It takes as long for any token."""
    scheme, _, token = authorization.partition(" ")
    given = _hash(token.strip())
    found = None
    for device in devices:
        if hmac.compare_digest(device.token_sha256, given):
            found = device
    return found if scheme.lower() == "bearer" else None


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
