"""A folder has one run at a time, and is gone again if the run wrote nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prgec.core.machine.folder_lock import FolderLock, holder
from prgec.errors import UsageError

HOLD = "import sys, fcntl, os; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(); input()"


def test_a_second_run_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None and other.stdin is not None
    other.stdout.readline()
    with pytest.raises(UsageError, match=r"another run is writing to this folder \(.*name another --out"):
        FolderLock(tmp_path).__enter__()
    other.kill()
    other.wait()
    with FolderLock(tmp_path):
        pass


def test_folders_are_made_and_removed_if_empty(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    assert not (tmp_path / "a").exists()
    with FolderLock(tmp_path / "a" / "b"):
        (tmp_path / "a" / "file").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]
    with FolderLock(tmp_path / "a"):
        pass
    assert (tmp_path / "a").is_dir()


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with FolderLock(tmp_path), pytest.raises(UsageError):
            FolderLock(tmp_path).__enter__()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_holder_is_reported(tmp_path: Path) -> None:
    assert holder(tmp_path / "gone") is None
    with FolderLock(tmp_path / "run"):
        assert holder(tmp_path / "run") == os.getpid()
        (tmp_path / "other").mkdir()
        assert holder(tmp_path / "other") is None
        with pytest.raises(UsageError, match=rf"process {os.getpid()}\)"), FolderLock(tmp_path / "run"):
            pass
    assert holder(tmp_path / "run") is None
