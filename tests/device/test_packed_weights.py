"""Packed weights in a file: the same run bit for bit, packed once, and no run that fails because of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.device.conftest import Drivers

pytestmark = pytest.mark.slow


# The second has two methods with weights, the one that evaluates being loaded when the file is sealed already.
@pytest.fixture(params=["xnnpack-static", "shortcut"])
def drivers(make: Callable[..., Drivers], request: pytest.FixtureRequest) -> Drivers:
    return make(request.param, steps=5, snapshot_every=0)


def _run(drivers: Drivers, out: Path, *flags: str, **environment: str) -> str:
    """Return what it warned of."""
    command = [str(drivers.executable), *map(str, drivers.arguments(out=out)), *flags]
    inherited = {key: value for key, value in os.environ.items() if key not in ("PRGEC_CACHE", "XDG_CACHE_HOME")}
    done = subprocess.run(command, capture_output=True, text=True, env={**inherited, **environment}, check=False)
    assert done.returncode == 0, done.stderr
    return "".join(line for line in done.stderr.splitlines(True) if line.startswith("warning"))


def _assert_same(first: Path, second: Path) -> None:
    for name in ("journal.bin", "adapter.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_changes_no_bit_and_packs_once(drivers: Drivers, tmp_path: Path) -> None:
    cache = tmp_path / "prgec"
    assert _run(drivers, tmp_path / "memory", "--packed-weights", "off", PRGEC_CACHE=str(cache)) == ""
    assert not cache.exists()
    assert _run(drivers, tmp_path / "fresh", PRGEC_CACHE=str(cache)) == ""
    (weights,) = (cache / "packed").glob("*.xnn")
    assert (weights.stat().st_mode & 0o777, weights.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    before = (weights.read_bytes(), weights.stat().st_mtime_ns)
    assert _run(drivers, tmp_path / "again", XDG_CACHE_HOME=str(tmp_path)) == ""
    assert _run(drivers, tmp_path / "third", "--packed-weights", str(cache / "packed")) == ""
    assert (weights.read_bytes(), weights.stat().st_mtime_ns) == before
    for name in ("fresh", "again", "third"):
        _assert_same(tmp_path / "memory", tmp_path / name)


def test_what_evaluates_has_no_weights_of_its_own(drivers: Drivers, tmp_path: Path) -> None:
    cache, training = tmp_path / "cache", replace(drivers.options, eval_rows=None, eval_every=0)
    assert _run(Drivers(drivers.executable, training), tmp_path / "training", PRGEC_CACHE=str(cache)) == ""
    (weights,) = (cache / "packed").glob("*.xnn")
    before = (weights.read_bytes(), weights.stat().st_mtime_ns)
    assert _run(drivers, tmp_path / "evaluating", PRGEC_CACHE=str(cache)) == ""
    assert (weights.read_bytes(), weights.stat().st_mtime_ns) == before
    assert (tmp_path / "training" / "adapter.safetensors").read_bytes() == (
        tmp_path / "evaluating" / "adapter.safetensors"
    ).read_bytes()


def test_damage_costs_a_warning_and_time(drivers: Drivers, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert _run(drivers, tmp_path / "fresh", PRGEC_CACHE=str(cache)) == ""
    (weights,) = (cache / "packed").glob("*.xnn")
    data = weights.read_bytes()
    for at in (len(data) // 2, len(data) - 30):
        weights.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        warning = _run(drivers, tmp_path / f"damaged{at}", PRGEC_CACHE=str(cache))
        assert warning.startswith("warning: the packed weights are damaged, packing them again: ")
        assert weights.read_bytes() == data
        _assert_same(tmp_path / "fresh", tmp_path / f"damaged{at}")


def test_a_folder_that_cannot_be_costs_a_warning(drivers: Drivers, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    warning = _run(drivers, tmp_path / "run", PRGEC_CACHE=str(tmp_path / "file"))
    assert warning.startswith("warning: the packed weights are kept in memory: cannot make the folder (")
    assert warning.count("\n") == 1
