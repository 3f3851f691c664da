"""A wheel trains in an environment without a compiler, and a source distribution makes the same wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import prgec

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
# The tools that would build the kernels if the wheel had none.
BUILDERS = ("c++", "g++", "clang++", "cc", "gcc", "cmake", "ninja", "make")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, which has to hold all it needs."""
    folder = tmp_path_factory.mktemp("wheel")
    script = f"from scikit_build_core.build import build_sdist; build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True)
    (source,) = folder.glob("prgec-*.tar.gz")
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second environment with the wheel; what it depends on is that of this one."""
    folder = tmp_path_factory.mktemp("second") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # Read as a list of folders, so that editable installations there have no effect.
    paths = dict.fromkeys(path for path in sys.path if path.endswith("site-packages"))
    (packages / "shared.pth").write_text("\n".join([*paths, sysconfig.get_path("purelib")]))
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([str(folder / "bin" / "python"), "-m", "pip", *install], check=True)
    return folder


def test_it_compiles_and_trains_without_a_compiler(environment: Path, tmp_path: Path) -> None:
    tools = environment / "bin"
    assert not [name for name in BUILDERS if shutil.which(name, path=str(tools))]

    def run(*command: str) -> str:
        done = subprocess.run(
            [str(tools / command[0]), *command[1:]],
            cwd=tmp_path,
            # No cache either: a library built earlier would stand in for that of the wheel.
            env={"PATH": str(tools), "HOME": str(tmp_path), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("python", "-c", "import prgec; print(prgec.__file__, prgec.__version__)").split()
    assert where[0].startswith(str(environment)) and where[1] == prgec.__version__
    rows = Path(where[0]).parent / "demo" / "data" / "train.jsonl"
    run("prgec", "compile", "demo", "--data", str(rows), "-o", "model.pte")
    run("prgec", "run", "model.pte", "--data", str(rows), "--steps", "3", "--out", "run")
    assert (tmp_path / "run" / "adapter.safetensors").is_file()
    assert not list((tmp_path / ".cache" / "prgec").rglob("*.so")), "the kernels were built again"


def test_the_source_distribution_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert "prgec/runtime_ops/libprgec_ops.so" in names and "prgec/backends/openvino/precision.py" in names
    assert os.path.getsize(wheel) < 30e6
