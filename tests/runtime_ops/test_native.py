"""Finding, building and caching the kernel library."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from prgec.errors import BackendError
from prgec.runtime_ops import native


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "_installed_libraries", lambda name: [])
    return tmp_path


def test_builds_once_into_the_cache(empty_cache: Path, monkeypatch: Any) -> None:
    path = native.kernel_library()
    assert path.is_relative_to(empty_cache)
    assert [entry.name for entry in path.parent.iterdir()] == [native.LIBRARY_NAME]
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert native.kernel_library() == path


def test_no_cmake_is_one_actionable_line(empty_cache: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(BackendError, match=r"cannot build the prge kernels: CMake is not installed .*Hint: .*compiler"):
        native.kernel_library()
    assert not list(empty_cache.rglob("*.so"))


def test_no_compiler_is_one_actionable_line(empty_cache: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BackendError, match=r"cannot build the prge kernels: .*Hint: .*compiler") as caught:
        native.kernel_library()
    assert "\n" not in str(caught.value)
    assert not list(empty_cache.rglob("*.so"))


def test_a_library_older_than_its_sources_is_not_used(tmp_path: Path, monkeypatch: Any) -> None:
    library = tmp_path / native.LIBRARY_NAME
    library.touch()
    monkeypatch.setattr(native, "_installed_libraries", lambda name: [library])
    assert native.kernel_library() == library
    os.utime(library, (0, 0))
    monkeypatch.setattr(native, "_build", lambda target: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.kernel_library() != library


def test_sources_are_those_of_every_library() -> None:
    names = {source.name for source in native._sources()}
    assert {"CMakeLists.txt", "op_dual_update.cpp", "adapter.cpp", "methods.cpp", "packed_weights.cpp"} <= names


def test_registered_kernels_are_not_loaded_again(monkeypatch: Any) -> None:
    """A second copy of the library, from another path, would abort the process."""
    native.load_kernels()
    monkeypatch.setattr(native, "kernel_library", lambda: pytest.fail("looked for a library to load"))
    native.load_kernels.__wrapped__()


def test_a_damaged_library_is_one_actionable_line(tmp_path: Path, monkeypatch: Any) -> None:
    damaged = tmp_path / native.LIBRARY_NAME
    damaged.write_bytes(b"not a library")
    monkeypatch.setattr(native, "kernel_library", lambda: damaged)
    monkeypatch.setattr(native, "_is_registered", lambda operator: False)
    with pytest.raises(BackendError, match="cannot load the prge kernels: .*Hint: "):
        native.load_kernels.__wrapped__()
    with pytest.raises(OSError):
        ctypes.CDLL(str(damaged))
