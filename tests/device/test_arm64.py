"""Noise on 64-bit ARM, emulated; `make arm64` compares losses and states."""

from __future__ import annotations

from pathlib import Path

import pytest

from prgec.machine import cross
from tests.checks.arm64 import noise_of_arm64, noise_of_host

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel() -> Path:
    missing, found = cross.arm64_missing(), cross.arm64_wheel()
    if missing or found is None:
        pytest.skip(f"missing {'; '.join(missing)}")
    return found


def test_noise_is_equal_to_the_bit(wheel: Path, tmp_path: Path) -> None:
    """NEON lanes against the scalar form there, and both machines by a checksum."""
    assert noise_of_arm64(tmp_path, wheel).split()[1] == noise_of_host(tmp_path).split()[1]
