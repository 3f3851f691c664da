"""Tokens: hashed, replaced, and nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from prgec.errors import DataError, UsageError
from prgec.serve.remote.tokens import add_device, find_device, read_devices


def test_a_token_finds_its_device_and_is_not_kept(tmp_path: Path) -> None:
    first, second = add_device(tmp_path, "phone-1"), add_device(tmp_path, "phone-2", 5000)
    devices = read_devices(tmp_path)
    found = find_device(devices, f"Bearer {second}")
    assert found is not None and (found.name, found.quota_bytes) == ("phone-2", 5000)
    kept = (tmp_path / "devices.json").read_text()
    assert first not in kept and second not in kept
    assert len({each.folder for each in devices}) == 2


def test_a_new_token_ends_the_old_one(tmp_path: Path) -> None:
    old = add_device(tmp_path, "phone")
    folder = read_devices(tmp_path)[0].folder
    new = add_device(tmp_path, "phone")
    devices = read_devices(tmp_path)
    assert find_device(devices, f"Bearer {old}") is None
    assert find_device(devices, f"bearer {new}") == devices[0] and devices[0].folder == folder


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer {}x", "Bearer \udcff"])
def test_nobodys_token(header: str, tmp_path: Path) -> None:
    token = add_device(tmp_path, "phone")
    assert find_device(read_devices(tmp_path), header.format(token)) is None


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-x", "a b", "x" * 65])
def test_names_that_are_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a name of a device"):
        add_device(tmp_path, name)


def test_a_damaged_list(tmp_path: Path) -> None:
    assert read_devices(tmp_path) == ()
    (tmp_path / "devices.json").write_text('[{"name": 3}]')
    with pytest.raises(DataError, match="list of devices is damaged"):
        read_devices(tmp_path)
