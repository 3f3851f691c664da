"""Every byte of a program has a checksum, and damage is reported with its part."""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
import zlib
from pathlib import Path

import pytest

from prgec.core.contract import checksums
from prgec.core.contract.checksums import append_checksums, read_checksums
from prgec.core.contract.layout import part_starts
from prgec.errors import ProgramError

NAMES = ["instructions", "constants", "tokenizer"]


@pytest.fixture
def program(tiny_pte: Path, tmp_path: Path) -> Path:
    path = tmp_path / "program.pte"
    shutil.copy(tiny_pte, path)
    append_checksums(path, None)
    return path


def _check(path: Path) -> None:
    found = read_checksums(path)
    assert found is not None
    found.check(path)


def _table(path: Path) -> tuple[bytes, bytes]:
    """The program and its table, by the page that describes them and not by the reader."""
    data = path.read_bytes()
    assert data[-8:] == b"PRGESUMS"
    size, crc = struct.unpack("<II", data[-16:-8])
    table = data[-16 - size : -16]
    assert zlib.crc32(table) == crc
    return data[: -16 - size], table


def test_every_byte_is_in_one_part(program: Path, tiny_pte: Path) -> None:
    body, table = _table(program)
    assert body == tiny_pte.read_bytes()
    parts, place = json.loads(table)["parts"], 0
    for part in parts:
        assert zlib.crc32(body[place : place + part["size"]]) == part["crc32"]
        place += part["size"]
    assert place == len(body)
    assert [part["name"] for part in parts] == NAMES
    _check(program)


def test_a_part_is_what_its_name_says(tiny_pte: Path, tokenizer_blob: bytes) -> None:
    data = tiny_pte.read_bytes()
    starts = dict((name, start) for start, name in reversed(part_starts(tiny_pte)))
    assert data[starts["tokenizer"] :][: len(tokenizer_blob)] == tokenizer_blob
    assert data.index(b'"sites"') < starts["constants"]


@pytest.mark.parametrize("seed", range(40))
def test_no_bit_can_change(program: Path, seed: int) -> None:
    rng, data = random.Random(seed), bytearray(program.read_bytes())
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    program.write_bytes(data)
    with pytest.raises(ProgramError, match="damaged") if data[-8:] == b"PRGESUMS" else pytest.raises(AssertionError):
        _check(program)


@pytest.mark.parametrize("name", NAMES)
def test_the_part_that_differs_is_named(program: Path, tiny_pte: Path, name: str) -> None:
    starts = part_starts(tiny_pte)
    start = next(start for start, each in starts if each == name)
    data = bytearray(program.read_bytes())
    data[start] ^= 4
    program.write_bytes(data)
    with pytest.raises(ProgramError, match=rf"^the program is damaged: {name}, bytes {start} to \d+, not as compiled"):
        _check(program)
    found = read_checksums(program)
    assert found is not None
    found.check(program, only=[other for other in NAMES if other != name])


def test_long_parts_are_checked_in_pieces(tiny_pte: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "_MAX_PART_BYTES", 1000)
    monkeypatch.setattr(checksums, "_CHUNK_BYTES", 77)
    path = tmp_path / "program.pte"
    shutil.copy(tiny_pte, path)
    append_checksums(path, None)
    data = path.read_bytes()
    at = tiny_pte.stat().st_size - 5
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(ProgramError, match="tokenizer, bytes") as error:
        _check(path)
    first, last = map(int, re.findall(r"\d+", str(error.value).split("bytes")[1])[:2])
    assert first <= at <= last < first + 1000


def test_the_file_of_weights_has_checksums_too(tiny_pte: Path, tmp_path: Path) -> None:
    path, data = tmp_path / "program.pte", tmp_path / "program.ptd"
    shutil.copy(tiny_pte, path)
    data.write_bytes(bytes(3 << 20))
    append_checksums(path, data)
    found = read_checksums(path)
    assert found is not None
    found.check_data(data)
    # In the middle, where its fingerprint does not look.
    data.write_bytes(bytes(3 << 19) + b"\1" + bytes((3 << 19) - 1))
    with pytest.raises(ProgramError, match="weights, bytes 0 to 3145727, not as compiled"):
        found.check_data(data)


def test_programs_of_earlier_versions_have_none(tiny_pte: Path, tmp_path: Path) -> None:
    assert read_checksums(tiny_pte) is None
    (tmp_path / "short").write_bytes(b"PRGESUMS")
    assert read_checksums(tmp_path / "short") is None


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"{}",
        b"[[[[",
        b'{"parts": [], "data": []}',
        b'{"parts": [{"name": "weights", "size": 1.0, "crc32": 0}], "data": []}',
        b'{"parts": [{"name": "weights", "size": -1, "crc32": 0}], "data": []}',
        b'{"parts": [{"name": 3, "size": 4, "crc32": 0}], "data": []}',
        b'{"parts": [{"name": "weights"}], "data": []}',
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, table: bytes) -> None:
    path = tmp_path / "program.pte"
    path.write_bytes(b"1234" + table + struct.pack("<II", len(table), zlib.crc32(table)) + b"PRGESUMS")
    with pytest.raises(ProgramError, match="its table of checksums is not whole"):
        read_checksums(path)


def test_a_table_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "program.pte"
    path.write_bytes(b"1234" + struct.pack("<II", 1 << 31, 0) + b"PRGESUMS")
    with pytest.raises(ProgramError, match="its table of checksums is not whole"):
        read_checksums(path)
