"""The emitted project is complete, replaces only itself, and refuses a folder that holds something else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from prgec.device.emit import emit_driver
from prgec.errors import UsageError

ROOT = Path(__file__).parents[2]


def test_holds_driver_and_kernels(tmp_path: Path) -> None:
    emit_driver(tmp_path / "d")
    found = {str(path.relative_to(tmp_path / "d")) for path in (tmp_path / "d").rglob("*") if path.is_file()}
    kernels = {f"kernels/{path.name}" for path in (ROOT / "runtime_ops" / "csrc").iterdir()}
    assert kernels | {"CMakeLists.txt", "CMakePresets.json", "README.md", "include/prge/trainer.h"} <= found
    assert {"include/prge/generator.h", "src/generator.cpp", "app/prge_chat.cpp"} <= found
    assert not [path for path in (tmp_path / "d").rglob("*") if path.is_symlink()]


def test_writes_over_an_earlier_one_and_keeps_its_build(tmp_path: Path) -> None:
    emit_driver(tmp_path)
    (tmp_path / "README.md").write_text("old")
    (tmp_path / "build").mkdir()
    emit_driver(tmp_path)
    assert (tmp_path / "README.md").read_text() != "old"
    assert (tmp_path / "build").is_dir()


def test_refuses_a_folder_with_something_else(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text("precious")
    with pytest.raises(UsageError, match="files that are not a driver"):
        emit_driver(tmp_path)
    with pytest.raises(UsageError, match="is a file"):
        emit_driver(tmp_path / "CMakeLists.txt")
    assert (tmp_path / "CMakeLists.txt").read_text() == "precious"


def test_every_cmake_here_configures_it(tmp_path: Path) -> None:
    """Does the system's cmake read the presets, or say what it lacks?"""
    emit_driver(tmp_path)
    scripts = sysconfig.get_path("scripts")
    found = {shutil.which("cmake", path=path) for path in (scripts, os.environ["PATH"], os.defpath)} - {None}
    assert found
    for cmake in found:
        # The driver finds ExecuTorch through the python of the environment in use.
        environment = {**os.environ, "PATH": os.pathsep.join((scripts, os.environ["PATH"]))}
        command = [str(cmake), "--preset", "host", "-B", str(tmp_path / "build" / Path(str(cmake)).parent.name)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        too_old = "expected 3.28 or newer. Hint: pip install cmake"
        assert done.returncode == 0 or too_old in " ".join(done.stderr.split()), done.stderr
