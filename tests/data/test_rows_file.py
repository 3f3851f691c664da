"""A file of rows gives back what was stored, byte by byte as documented, and nothing at all when it was damaged."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from prgec.core.contract.manifest import Manifest
from prgec.core.data.encode import Row
from prgec.core.data.rows_file import RowSet, fingerprint, pack_rows, read_rows
from prgec.errors import DataError

TOKENIZER = "5e" * 32
MANIFEST = Manifest(
    model="m",
    architecture="A",
    backend="portable",
    q=1,
    batch_size=1,
    seq_len=8,
    dynamic_seq_len=True,
    num_labels=2,
    vocab_size=99,
    rank=1,
    alpha=1.0,
    a_seed=0,
    state="seeded",
    quantize="none",
    sites=(),
    pipeline="",
    base_sha256="",
)
ROWS = RowSet(
    (
        Row((1, 2, 3), (2,), (4,)),
        Row((1, 2, 3, 5), (2, 3), (5, 6)),
        Row((9,), (0,), (98,)),
        Row((98,) * 8, (0, 7), (0, 1)),
    ),
    2,
    (1, 0),
)
WEIGHED = Row((98,) * 8, (0, 7), (0, 1), weights=(-2.0, 0.25))
PACKED = pack_rows(ROWS, MANIFEST, TOKENIZER, "sst2")


def _read(path: Path, data: bytes, manifest: Manifest = MANIFEST, tokenizer: str = TOKENIZER) -> RowSet:
    path.write_bytes(data)
    found = read_rows(path, manifest, tokenizer)
    return replace(found, rows=tuple(found.rows))


def _signed(data: bytes) -> bytes:
    """Return damaged bytes with a checksum and a size that fit them."""
    data = data[:16] + struct.pack("<Q", len(data)) + data[24:]
    return data[:12] + struct.pack("<I", zlib.crc32(data[16:])) + data[16:]


def test_round_trip(tmp_path: Path) -> None:
    assert _read(tmp_path / "rows.bin", PACKED) == ROWS
    assert list(ROWS.right_rows()) == [ROWS.rows[1], ROWS.rows[2]]


def test_weights_come_back_and_make_the_second_version(tmp_path: Path) -> None:
    weighed = replace(ROWS, rows=(replace(ROWS.rows[0], weights=(0.5,)), *ROWS.rows[1:3], WEIGHED))
    data = pack_rows(weighed, MANIFEST, TOKENIZER, "sst2")
    assert struct.unpack_from("<I", data, 8) == (2,)
    assert _read(tmp_path / "rows.bin", data) == weighed
    assert struct.unpack_from("<2f", data, len(data) - 8) == WEIGHED.weights
    assert fingerprint([WEIGHED]) != fingerprint([ROWS.rows[3]])
    # Weights that are NaN, and a first version that has some.
    for damaged in (data[:-4] + struct.pack("<f", float("nan")), data[:8] + struct.pack("<I", 1) + data[12:]):
        with pytest.raises(DataError, match="row [03] of the file is damaged"):
            _read(tmp_path / "damaged.bin", _signed(damaged))


def test_a_program_with_more_room_takes_them(tmp_path: Path) -> None:
    assert _read(tmp_path / "r", PACKED, replace(MANIFEST, seq_len=9, num_labels=3, vocab_size=100)) == ROWS


def test_layout_is_the_documented_one() -> None:
    words = struct.unpack_from(f"<{(len(PACKED) - 96) // 4}I", PACKED, 96)
    assert struct.unpack_from("<8sI", PACKED) == (b"PRGEROWS", 1)
    assert struct.unpack_from("<QIIIIII", PACKED, 16) == (len(PACKED), 2, 2, 8, 2, 99, 0)
    assert PACKED[48:80].hex() == TOKENIZER
    assert PACKED[80:96] == b"sst2" + bytes(12)
    assert words[:2] == (1, 0)
    assert words[2:7] == (0, 7, 17, 22, 36)
    assert words[7:14] == (3, 1, 1, 2, 3, 2, 4)
    assert words[14:24] == (4, 2, 1, 2, 3, 5, 2, 3, 5, 6)


def test_fingerprint_is_that_of_the_stored_rows() -> None:
    assert fingerprint(ROWS.rows) == zlib.crc32(PACKED[96 + 4 * 7 :])


def test_any_changed_byte_is_noticed(tmp_path: Path) -> None:
    for place in range(len(PACKED)):
        changed = bytearray(PACKED)
        changed[place] ^= 0x10
        with pytest.raises(DataError):
            _read(tmp_path / "rows.bin", bytes(changed))


@pytest.mark.parametrize("length", [0, 7, 95, 96, 100, len(PACKED) - 4, len(PACKED) - 1])
@pytest.mark.parametrize("sign", [False, True])
def test_any_missing_tail_is_noticed(tmp_path: Path, length: int, sign: bool) -> None:
    cut = _signed(PACKED[:length]) if sign and length > 24 else PACKED[:length]
    with pytest.raises(DataError):
        _read(tmp_path / "rows.bin", cut)


WORDS = {
    "no examples": (24, 0),
    "no candidates": (28, 0),
    "many examples": (24, 2**32 - 1),
    "answer": (96, 2),
    "first place": (104, 2**31),
    "tokens": (124, 9),
    "no tokens": (124, 0),
    "labels": (128, 3),
    "no labels": (128, 0),
    "token": (132, 99),
    "label position": (144, 3),
    "target": (148, 99),
}


@pytest.mark.parametrize("what", WORDS)
def test_wrong_numbers_under_a_right_checksum(tmp_path: Path, what: str) -> None:
    place, value = WORDS[what]
    with pytest.raises(DataError):
        _read(tmp_path / "rows.bin", _signed(PACKED[:place] + struct.pack("<I", value) + PACKED[place + 4 :]))


@pytest.mark.parametrize(
    ("manifest", "tokenizer", "message"),
    [
        (MANIFEST, "00" * 32, "another tokenizer"),
        (replace(MANIFEST, seq_len=7), TOKENIZER, "the rows were made for T = 8; the program has T = 7"),
        (replace(MANIFEST, num_labels=1), TOKENIZER, "for K = 2; the program has K = 1"),
        (replace(MANIFEST, vocab_size=98), TOKENIZER, "for V = 99; the program has V = 98"),
    ],
)
def test_rows_of_another_program(tmp_path: Path, manifest: Manifest, tokenizer: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        _read(tmp_path / "rows.bin", PACKED, manifest, tokenizer)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file of rows"):
        read_rows(tmp_path / "none", MANIFEST, TOKENIZER)
