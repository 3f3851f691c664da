"""Names of rows that nobody but the device can read: hashes under a key of its own.

A plain hash of a text can be found by trying texts.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prgec.core.data.encode import Row
from prgec.core.formats.shards import ID_BYTES
from prgec.errors import DataError

KEY_BYTES = 32
_FOLDER = "prgec"
_NAME = "device.key"


def default_key_path() -> Path:
    """Where a device keeps its key: not among what it sends."""
    root = os.environ.get("XDG_CONFIG_HOME")
    return (Path(root) if root else Path.home() / ".config") / _FOLDER / _NAME


def load_key(path: Path) -> bytes:
    """Read the device's key; make one where there is none.

    Raises:
        DataError: If the file is not a key, or others may read it.
        OSError: If it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_key(path)
    with os.fdopen(descriptor, "wb") as file:
        key = secrets.token_bytes(KEY_BYTES)
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key


def _read_key(path: Path) -> bytes:
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise DataError(f"a device key has {KEY_BYTES} bytes, this file {len(key)}", where=path, hint="remove it")
    if path.stat().st_mode & 0o077:
        raise DataError("others may read the device's key", where=path, hint="chmod 600 it")
    return key


def keyed(key: bytes, purpose: str, content: bytes) -> bytes:
    """Return 32 bytes that follow from a content, and that nobody finds without the key."""
    return hmac.new(key, purpose.encode() + b"\0" + content, hashlib.sha256).digest()


def row_ids(rows: Sequence[Row], key: bytes) -> list[bytes]:
    """Return the name of each row; equal rows are numbered."""
    seen: Counter[bytes] = Counter()
    ids = []
    for row in rows:
        tokens = np.asarray(row.tokens, dtype="<i8").tobytes()
        ids.append(keyed(key, "row", seen[tokens].to_bytes(8, "little") + tokens)[:ID_BYTES])
        seen[tokens] += 1
    return ids
