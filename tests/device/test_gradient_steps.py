"""Programs that compute their own gradients, in the C++ driver as in the Python driver: killed, broken, refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prgec.core.formats.journal import read_journal
from prgec.errors import NumericsError
from prgec.runtime.runs.result import Listener
from prgec.runtime.runs.run import run
from prgec.runtime.training.step import StepResult
from tests.device.conftest import STEPS, Drivers

FILES = ("journal.bin", "adapter.safetensors")
# A norm alone, and an optimiser with state of every kind.
PROGRAMS = ("exact", pytest.param("shortcut", marks=pytest.mark.slow))


class _Killed(BaseException):
    pass


class _KillAt(Listener):
    def on_step(self, result: StepResult) -> None:
        if result.step == 33:
            raise _Killed


class _StopAt(Listener):
    has_come = False

    def on_step(self, result: StepResult) -> None:
        self.has_come = result.step == 33


def _metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def _assert_same(first: Path, second: Path) -> None:
    for name in FILES:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert _metrics(first) == _metrics(second)


@pytest.fixture(params=PROGRAMS)
def drivers(make: Callable[..., Drivers], request: pytest.FixtureRequest, tmp_path: Path) -> Drivers:
    """A run whose whole result is in `whole`."""
    drivers = make(request.param)
    assert drivers.cpp(out=tmp_path / "whole").returncode == 0
    return drivers


def _stop_cpp(drivers: Drivers, folder: Path, number: signal.Signals) -> None:
    """Send a run a signal after its snapshot."""
    command = [drivers.executable, *drivers.arguments(out=folder)]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (folder / "snapshot.safetensors").exists():
        time.sleep(0.001)
    process.send_signal(number)
    assert process.wait() != 0, "it was not stopped in time"


def test_goes_on_where_python_was_killed(drivers: Drivers, tmp_path: Path) -> None:
    with pytest.raises(_Killed):
        run(drivers.options, _KillAt())
    result = drivers.cpp(resume=True)
    assert result.returncode == 0
    assert "warning: taking steps 31 to 33 again, from the last snapshot\n" in result.stderr
    assert "resuming after step 30\n" in result.stderr
    _assert_same(tmp_path / "cpp", tmp_path / "whole")


@pytest.mark.parametrize(("name", "rate"), [("exact", 3e-3), ("host-exact", 1e-3)])
def test_a_run_that_names_no_rate_takes_the_programs(
    make: Callable[..., Drivers], tmp_path: Path, name: str, rate: float
) -> None:
    drivers = make(name, lr=None, steps=4, eval_every=0)
    assert drivers.cpp().returncode == 0
    drivers.python(out=tmp_path / "python")
    _assert_same(tmp_path / "cpp", tmp_path / "python")
    assert read_journal(tmp_path / "cpp" / "journal.bin").header.lr == rate


def test_goes_on_where_it_was_killed(drivers: Drivers, tmp_path: Path) -> None:
    for name in ("cpp", "python"):
        _stop_cpp(drivers, tmp_path / name, signal.SIGKILL)
    assert drivers.cpp(resume=True).returncode == 0
    drivers.python(resume=True, out=tmp_path / "python")
    for name in ("cpp", "python"):
        _assert_same(tmp_path / name, tmp_path / "whole")


def test_an_interrupted_run_goes_on_after_its_last_step(
    make: Callable[..., Drivers], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drivers = make("exact")
    assert drivers.cpp(out=tmp_path / "whole").returncode == 0
    _stop_cpp(drivers, tmp_path / "cpp", signal.SIGINT)
    assert (tmp_path / "cpp" / "journal.bin").exists()
    drivers.python(resume=True)
    assert "taking steps" not in caplog.text

    listener = _StopAt()
    run(replace(drivers.options, out=tmp_path / "python"), listener, lambda: listener.has_come)
    result = drivers.cpp(resume=True, out=tmp_path / "python")
    assert "resuming after step 33\n" in result.stderr and "taking steps" not in result.stderr
    for name in ("cpp", "python"):
        assert not (tmp_path / name / "snapshot.safetensors").exists()
        adapters = (tmp_path / folder / "adapter.safetensors" for folder in (name, "whole"))
        assert next(adapters).read_bytes() == next(adapters).read_bytes()


# Places in the file: its header, the optimiser's state, and the last of the masters.
DAMAGE = {"header": 12, "optimiser": -1, "masters": -17, "missing": None}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_snapshot_that_is_no_good_costs_time(make: Callable[..., Drivers], damage: str, tmp_path: Path) -> None:
    drivers = make("exact")
    assert drivers.cpp(out=tmp_path / "whole").returncode == 0
    with pytest.raises(_Killed):
        run(drivers.options, _KillAt())
    snapshot = tmp_path / "cpp" / "snapshot.safetensors"
    data, place = bytearray(snapshot.read_bytes()), DAMAGE[damage]
    snapshot.unlink()
    if place is not None:
        data[place] ^= 1
        snapshot.write_bytes(data)
    shutil.copytree(tmp_path / "cpp", tmp_path / "python")
    result = drivers.cpp(resume=True)
    assert result.returncode == 0
    assert "warning: taking steps 1 to 33 again" in result.stderr
    drivers.python(resume=True, out=tmp_path / "python")
    for name in ("cpp", "python"):
        _assert_same(tmp_path / name, tmp_path / "whole")


def test_a_gradient_that_is_not_finite_stops_the_run(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make("exact", eval_rows=None, eval_every=0, steps=20, lr=1e38, schedule="constant")
    result = drivers.cpp()
    assert result.returncode == 8
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: the gradient of step ")
    assert "is not finite; training stopped, state kept. Hint: lower --lr, or go on with" in last
    with pytest.raises(NumericsError, match="is not finite; training stopped, state kept"):
        drivers.python(out=tmp_path / "python")
    _assert_same(tmp_path / "cpp", tmp_path / "python")
    assert 0 < len(read_journal(tmp_path / "cpp" / "journal.bin").steps) < 20


def test_a_skipped_step_changes_nothing_and_is_in_the_journal(make: Callable[..., Drivers], tmp_path: Path) -> None:
    flags = {"lr": 1e38, "schedule": "constant", "not_finite": "skip", "snapshot_every": 7}
    drivers = make("exact", eval_rows=None, eval_every=0, steps=20, **flags)
    assert drivers.cpp().returncode == 0
    drivers.python(out=tmp_path / "python")
    _assert_same(tmp_path / "cpp", tmp_path / "python")
    journal = read_journal(tmp_path / "cpp" / "journal.bin")
    lines = _metrics(tmp_path / "cpp")
    assert len(journal.steps) == len(lines) == 20
    assert lines[-1]["grad_norm"] is None and lines[-1]["limited"] == "skipped"
    assert journal.states[14] == journal.states[20]


def test_other_contracts_are_refused(
    make: Callable[..., Drivers], build_variant: Callable[..., Path], tmp_path: Path
) -> None:
    drivers = make("exact")
    result = drivers.cpp(program=build_variant(prgec_contract_version=3))
    assert result.returncode == 5
    assert "error: the program speaks contract version 3; this driver speaks 1 and 2" in result.stderr


def test_only_the_runs_own_flags_matter(make: Callable[..., Drivers], tmp_path: Path) -> None:
    """Options about measured losses change nothing, not even the journal."""
    drivers = make("exact", steps=5)
    assert drivers.cpp().returncode == 0
    assert drivers.cpp(out=tmp_path / "other", eps=0.5, estimator="std").returncode == 0
    _assert_same(tmp_path / "cpp", tmp_path / "other")
    assert len(read_journal(tmp_path / "cpp" / "journal.bin").steps) == 5 < STEPS
