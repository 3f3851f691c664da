"""Damaged files that look whole: mutations of good ones, with lengths and checksums put right again.

Without that, every reader would stop at its checksum and nothing after it would be tried.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable

_JOURNAL_HEADER_BYTES = 176
_INTERESTING = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFE,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
_TOKENS = (
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"9223372036854775808",
    b'""',
    b"[]",
    b"{}",
    b"[[[[[[[[",
    b"\\u0000",
    b"\\ud800",
    b"\x00",
    b"\xff",
    b"../../x",
    b"/etc/passwd",
    b"F32",
    b"BF16",
    b"I64",
)


def mutate(data: bytes, rng: random.Random, kind: str) -> bytes:
    """Return a damaged copy; most get their checksums put right."""
    changed = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        rng.choice(_MUTATIONS)(changed, rng)
    repair = _REPAIRS.get(kind)
    if repair is not None and rng.random() < 0.8:
        repair(changed)
    return bytes(changed)


def _flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_number(data: bytearray, rng: random.Random) -> None:
    width = rng.choice((1, 2, 4, 8))
    if len(data) >= width:
        at = rng.randrange(len(data) - width + 1)
        at -= at % width if rng.random() < 0.8 else 0
        data[at : at + width] = (rng.choice(_INTERESTING) & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def _change_digit(data: bytearray, rng: random.Random) -> None:
    digits = [at for at, byte in enumerate(data) if 0x30 <= byte <= 0x39]
    if digits:
        data[rng.choice(digits)] = rng.choice(b"0123456789-.e")


def _insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(_TOKENS) if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 9))


def _replace(data: bytearray, rng: random.Random) -> None:
    at, token = rng.randrange(len(data) + 1), rng.choice(_TOKENS)
    data[at : at + len(token)] = token


def _cut(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 4, 8, 64, 1 << 20))]


def _repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = data[at : at + rng.choice((1, 4, 8, 32, 128))]


_MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _set_number,
    _set_number,
    _change_digit,
    _insert,
    _replace,
    _cut,
    _repeat,
)


def _repair_journal(data: bytearray) -> None:
    if len(data) < _JOURNAL_HEADER_BYTES:
        return
    data[:12] = b"PRGEJRNL" + struct.pack("<I", 2)
    struct.pack_into("<I", data, 12, zlib.crc32(data[16:_JOURNAL_HEADER_BYTES]))
    (q,) = struct.unpack_from("<I", data, 16)
    sizes, place = {1: 32 + 20 * q, 2: 40, 3: 48}, _JOURNAL_HEADER_BYTES
    while place + 8 <= len(data):
        (kind,) = struct.unpack_from("<I", data, place + 4)
        end = place + sizes.get(kind, 8)
        struct.pack_into("<I", data, place, zlib.crc32(data[place + 4 : min(end, len(data))]))
        place = end


def _repair_rows(data: bytearray) -> None:
    del data[len(data) - len(data) % 4 :]
    if len(data) >= 96:
        data[:12] = b"PRGEROWS" + struct.pack("<I", 1)
        struct.pack_into("<Q", data, 16, len(data))
        struct.pack_into("<I", data, 12, zlib.crc32(data[16:]))


def _repair_adapter(data: bytearray) -> None:
    end = data.rfind(b"]}")
    if end > 8:
        struct.pack_into("<Q", data, 0, end + 3 - 8 if data[end + 2 : end + 3] == b"}" else end + 2 - 8)


def _repair_tensors(data: bytearray) -> None:
    end = data.rfind(b"]}}")
    if end > 8:
        end += 3
        while data[end : end + 1] == b" ":
            end += 1
        struct.pack_into("<Q", data, 0, end - 8)


_REPAIRS: dict[str, Callable[[bytearray], None]] = {
    "journal": _repair_journal,
    "rows": _repair_rows,
    "adapter": _repair_adapter,
    "shard": _repair_tensors,
    "network": _repair_tensors,
}
