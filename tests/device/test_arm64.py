"""Noise, training and runs that change machines on emulated 64-bit ARM; `make arm64` does it with the bundled model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prgec.core.machine import cross
from tests.checks.arm64 import build, compare, noise_of_arm64, noise_of_host

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel() -> Path:
    missing, found = cross.arm64_missing(), cross.arm64_wheel()
    if missing or found is None:
        pytest.skip(f"missing {'; '.join(missing)}")
    return found


@pytest.fixture(scope="module")
def there(wheel: Path, executable: Path) -> Path:
    """The driver that this machine's tests run, built for the other one."""
    del wheel
    return build(executable.parents[2], "arm64")


def test_noise_is_equal_to_the_bit(wheel: Path, tmp_path: Path) -> None:
    """NEON lanes against the scalar form there, and both machines by a checksum."""
    assert noise_of_arm64(tmp_path, wheel).split()[1] == noise_of_host(tmp_path).split()[1]


@pytest.mark.parametrize("name", ["xnnpack-static", "gathering"])
def test_runs_agree_and_change_machines(
    wheel: Path, there: Path, executable: Path, program: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    """On a processor with SME, where narrow and wide layers are packed alike, and on one without."""
    found = compare(program(name), name, executable, there, wheel, tmp_path)
    assert [bool(each.resumed_at) for each in found] == [False, True] * 2
    assert all(each.is_good for each in found), "\n".join(map(str, found))
