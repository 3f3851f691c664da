"""The parts of the C++ driver that need no program, each with a test of its own: see units/CMakeLists.txt."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.device.conftest import generator, run_cmake

UNITS = Path(__file__).parent / "units"
NAMES = sorted(path.stem.removeprefix("test_") for path in UNITS.glob("test_*.cpp"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("units")
    run_cmake("-S", UNITS, "-B", build, *generator(), "-DCMAKE_BUILD_TYPE=Debug")
    run_cmake("--build", build)
    return build


@pytest.mark.parametrize("name", NAMES)
def test_unit(built: Path, name: str) -> None:
    done = subprocess.run([built / f"unit_{name}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    cases = re.findall(r"^TEST\((\w+)\)", (UNITS / f"test_{name}.cpp").read_text(), re.M)
    assert cases == done.stdout.split(), "a case did not run"


def test_ctest_knows_them_all(built: Path) -> None:
    listed = (built / "CTestTestfile.cmake").read_text()
    assert set(re.findall(r"^add_test\(\W*(\w+)", listed, re.M)) == set(NAMES)
