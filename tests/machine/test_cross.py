"""Missing tools to build for 64-bit ARM are named, each with the way to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from prgec.core.machine import cross


def test_everything_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(cross.WHEEL_VARIABLE, str(tmp_path))
    compiler, emulator, wheel = cross.arm64_missing()
    assert "apt-get install g++-aarch64-linux-gnu" in compiler and "apt-get install qemu-user-static" in emulator
    assert "EXECUTORCH_ARM64" in wheel and cross.arm64_wheel() is None


def test_nothing_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (cross.COMPILER, cross.EMULATOR):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    library = tmp_path / "executorch" / "lib" / "libexecutorch.so"
    library.parent.mkdir(parents=True)
    library.write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(cross.WHEEL_VARIABLE, str(tmp_path))
    assert cross.arm64_missing() == [] and cross.arm64_wheel() == tmp_path
    assert cross.emulated(tmp_path / "prge_train", tmp_path)[-1] == str(tmp_path / "prge_train")
