"""Names of rows, and the key they are made with."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from prgec.core.data.encode import Row
from prgec.errors import DataError
from prgec.serve.side.row_ids import default_key_path, load_key, row_ids

KEY = bytes(range(32))


def _row(*tokens: int) -> Row:
    return Row(tokens, (len(tokens) - 1,), (0,))


def test_names_tell_rows_apart_and_depend_on_the_key() -> None:
    rows = [_row(1, 2), _row(1, 3), _row(1, 2), _row(1, 2, 0)]
    ids = row_ids(rows, KEY)
    assert len(set(ids)) == 4 and {len(each) for each in ids} == {16}
    assert row_ids(rows, KEY) == ids
    assert not set(ids) & set(row_ids(rows, bytes(32)))


def test_a_name_is_no_plain_hash_of_the_tokens() -> None:
    (found,) = row_ids([_row(1, 2)], KEY)
    packed = b"".join(token.to_bytes(8, "little") for token in (1, 2))
    assert found not in {hashlib.sha256(packed).digest()[:16], hashlib.sha256(bytes(8) + packed).digest()[:16]}


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "config" / "device.key"
    key = load_key(path)
    assert len(key) == 32 and load_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_key(tmp_path / "other.key") != key


def test_a_key_that_is_none(tmp_path: Path) -> None:
    short, shared = tmp_path / "short", tmp_path / "shared"
    short.write_bytes(b"abc")
    with pytest.raises(DataError, match="a device key has 32 bytes, this file 3"):
        load_key(short)
    shared.write_bytes(KEY)
    shared.chmod(0o644)
    with pytest.raises(DataError, match="others may read the device's key"):
        load_key(shared)


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert default_key_path() == tmp_path / "prgec" / "device.key"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert default_key_path() == Path.home() / ".config" / "prgec" / "device.key"
