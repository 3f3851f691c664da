"""Packed weights of the C++ driver are listed and removed, but not those in use, nor files of others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prgec.core.machine.packed_weights import clear_packed, list_packed, packed_folder

HOLD = "import sys, fcntl, os; fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX); print(flush=True); input()"
DAY = 86400


def _write(folder: Path, name: str, program: str | None, size: int, days: float) -> Path:
    """Write what the driver would: a seal of two lines, or of one as it was before, or none."""
    stem = name * 64
    (folder / f"{stem}.xnn").write_bytes(bytes(size))
    seal = folder / f"{stem}.seal"
    seal.write_text(f"prge-packed 1 {size} 0123abcd\n" + ("" if program is None else f"{program}\n"))
    for path in (seal, folder / f"{stem}.xnn"):
        os.utime(path, (time.time() - days * DAY,) * 2)
    return folder / f"{stem}.xnn"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _write(tmp_path, "a", "/models/a.pte", 1000, days=9.5)
    _write(tmp_path, "b", "/models/b.pte", 200, days=2)
    _write(tmp_path, "c", None, 30, days=40)
    (tmp_path / "notes.xnn").write_text("somebody else's")
    (tmp_path / ("d" * 64)).write_text("no file of ours has that name")
    (tmp_path / f"{'e' * 64}.xnn").symlink_to(tmp_path / "notes.xnn")
    return tmp_path


def test_lists_last_used_first(folder: Path) -> None:
    found = list_packed(folder)
    assert [(each.path.stem[0], each.program, round(each.days)) for each in found] == [
        ("b", "/models/b.pte", 2),
        ("a", "/models/a.pte", 10),
        ("c", "", 40),
    ]
    seals = [path.with_suffix(".seal").stat().st_size for path in (each.path for each in found)]
    assert [each.num_bytes for each in found] == [
        size + seal for size, seal in zip((200, 1000, 30), seals, strict=True)
    ]
    assert not any(each.in_use for each in found)


def test_a_path_cannot_steer_a_terminal(folder: Path) -> None:
    _write(folder, "f", "/\x1b[31m\u202e.pte", 1, days=0)
    assert list_packed(folder)[0].program == "/?[31m?.pte"


def test_clears_everything_of_the_driver_and_nothing_else(folder: Path) -> None:
    total = sum(each.num_bytes for each in list_packed(folder))
    done = clear_packed(folder)
    assert (done.files, done.num_bytes, done.in_use) == (3, total, 0)
    assert sorted(path.name for path in folder.iterdir()) == ["d" * 64, f"{'e' * 64}.xnn", "notes.xnn"]
    assert clear_packed(folder).files == 0


def test_clears_what_was_not_used_for_long(folder: Path) -> None:
    assert clear_packed(folder, older_than_days=9).files == 2
    assert [each.program for each in list_packed(folder)] == ["/models/b.pte"]


def test_keeps_what_a_driver_uses(folder: Path) -> None:
    seal = folder / f"{'a' * 64}.seal"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, seal], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    assert [each.in_use for each in list_packed(folder)] == [False, True, False]
    done = clear_packed(folder)
    assert (done.files, done.in_use) == (2, 1)
    assert seal.exists() and seal.with_suffix(".xnn").exists()
    holder.kill()
    holder.wait()
    assert clear_packed(folder).files == 1


def test_a_file_that_was_never_sealed_is_listed(folder: Path) -> None:
    (folder / f"{'a' * 64}.seal").unlink()
    (folder / f"{'b' * 64}.seal").write_text("")
    assert {each.path.stem[0]: each.program for each in list_packed(folder)} == {"a": "", "b": "", "c": ""}
    assert clear_packed(folder).files == 3


def test_there_need_be_no_folder(tmp_path: Path) -> None:
    assert list_packed(tmp_path / "none") == []
    assert clear_packed(tmp_path / "none").files == 0


def test_the_folder_is_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"PRGEC_CACHE": "/c/packed", "XDG_CACHE_HOME": "/x/prgec/packed", "HOME": "/h/.cache/prgec/packed"}
    for variable, root in zip(places, ("/c", "/x", "/h"), strict=True):
        monkeypatch.setenv(variable, root)
    for variable, place in places.items():
        assert packed_folder() == Path(place)
        monkeypatch.setenv(variable, "")
    assert packed_folder() is None
