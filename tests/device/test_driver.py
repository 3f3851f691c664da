"""The C++ driver does what the Python driver does, bit for bit, and survives what the Python driver survives."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from prgec.core.formats.journal import read_journal
from prgec.core.machine.folder_lock import FolderLock
from prgec.errors import NumericsError, UsageError
from prgec.runtime.runs.result import Listener
from prgec.runtime.runs.run import run
from prgec.runtime.training.step import StepResult
from tests.device.conftest import PROGRAMS, QUICK, STEPS, Drivers, run_driver


def _metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def _assert_same(first: Path, second: Path) -> None:
    for name in ("journal.bin", "adapter.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert _metrics(first) == _metrics(second)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS]
)
def test_equals_the_python_driver(make: Callable[..., Drivers], name: str, tmp_path: Path) -> None:
    # Portable kernels take their time for a backward pass.
    drivers = make(name, steps=35, eval_every=14, snapshot_every=10) if name == "exact" else make(name)
    result = drivers.cpp()
    assert (result.returncode, result.stderr.count("evaluation loss")) == (0, 4)
    drivers.python(out=tmp_path / "python")
    _assert_same(tmp_path / "cpp", tmp_path / "python")
    assert len(read_journal(tmp_path / "cpp" / "journal.bin").steps) == drivers.options.steps


@pytest.mark.slow
def test_an_adapter_carries_the_a_that_was_given(make: Callable[..., Drivers], tmp_path: Path) -> None:
    """In either driver's files alike; a program with another A refuses it."""
    drivers = make("calibrated", steps=20, eval_rows=None, eval_every=0)
    assert drivers.cpp().returncode == 0
    adapter = tmp_path / "cpp" / "adapter.safetensors"
    drivers.python(adapter=adapter, out=tmp_path / "python-2")
    assert drivers.cpp(adapter=adapter, out=tmp_path / "cpp-2").returncode == 0
    _assert_same(tmp_path / "cpp-2", tmp_path / "python-2")
    with safe_open(adapter, "numpy") as file:
        assert {name.rpartition(".")[2] for name in file.keys()} == {"lora_A", "lora_B"}  # noqa: SIM118
    other = make("portable", steps=20, eval_rows=None, eval_every=0, adapter=adapter, out=tmp_path / "other")
    refused = other.cpp()
    assert refused.returncode == 4
    assert "error: the adapter does not fit the program: its a_sha256 is another" in refused.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "cosine", "estimator": "std", "warmup": 7},
        {"schedule": "constant", "estimator": "norm", "eval_rows": None, "eval_every": 0},
    ],
)
def test_equals_it_under_every_policy(make: Callable[..., Drivers], changes: dict[str, Any], tmp_path: Path) -> None:
    drivers = make(**changes, steps=40, lr=3e-3, eps=0.1, snapshot_every=0)
    assert drivers.cpp().returncode == 0
    drivers.python(out=tmp_path / "python")
    _assert_same(tmp_path / "cpp", tmp_path / "python")
    # From the adapter of that run.
    start = tmp_path / "python" / "adapter.safetensors"
    assert drivers.cpp(adapter=start, out=tmp_path / "cpp-2").returncode == 0
    drivers.python(adapter=start, out=tmp_path / "python-2")
    _assert_same(tmp_path / "cpp-2", tmp_path / "python-2")


@pytest.mark.parametrize(
    "changes",
    [{"max_g": 0.2}, {"max_g": 0.5, "over_limit": "skip"}, {"lr": 1e38, "schedule": "constant", "not_finite": "skip"}],
)
def test_equals_it_within_limits(make: Callable[..., Drivers], changes: dict[str, Any], tmp_path: Path) -> None:
    drivers = make(**changes, eval_rows=None, eval_every=0, steps=20, snapshot_every=0)
    assert drivers.cpp().returncode == 0
    drivers.python(out=tmp_path / "python")
    _assert_same(tmp_path / "cpp", tmp_path / "python")
    assert any("limited" in line for line in _metrics(tmp_path / "cpp"))


def test_equals_it_when_training_diverges(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make(eval_rows=None, eval_every=0, steps=60, lr=3.0, schedule="constant", diverged=1.1, window=4)
    result = drivers.cpp()
    assert result.returncode == 8
    assert "error: training diverged: the mean loss of 4 steps was" in result.stderr
    assert "kept the state of step" in result.stderr
    with pytest.raises(NumericsError, match="training diverged: the mean loss of 4 steps was"):
        drivers.python(out=tmp_path / "python")
    _assert_same(tmp_path / "cpp", tmp_path / "python")
    # Going on diverges at once, and changes nothing.
    assert drivers.cpp(resume=True).returncode == 8
    _assert_same(tmp_path / "cpp", tmp_path / "python")


def test_two_runs_in_one_folder(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make(steps=10**6)
    command = [drivers.executable, *drivers.arguments()]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    journal = tmp_path / "cpp" / "journal.partial.bin"
    while not (journal.exists() and journal.stat().st_size > 2000):
        time.sleep(0.01)
    for changes in ({"force": True}, {"resume": True}):
        refused = drivers.cpp(**changes)
        assert refused.returncode == 2
        assert "another run is writing to this folder" in refused.stderr
        with pytest.raises(UsageError, match="another run is writing to this folder"):
            drivers.python(**changes)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 130
    with FolderLock(tmp_path / "cpp"):
        assert "another run is writing to this folder" in drivers.cpp(resume=True).stderr


@pytest.mark.parametrize(("eps", "warns"), [(1e-30, True), (1e-2, False)])
def test_both_say_when_perturbations_change_no_loss(
    make: Callable[..., Drivers], eps: float, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = "both signs of every query have the same loss, so nothing is learnt; raise --eps"
    drivers = make(eps=eps, steps=2)
    drivers.python(out=tmp_path / "python")
    assert (line in caplog.text) == warns
    assert (f"warning: {line}\n" in drivers.cpp().stderr) == warns


class _Killed(BaseException):
    pass


class _KillAt(Listener):
    def on_step(self, result: StepResult) -> None:
        if result.step == 33:
            raise _Killed


def test_goes_on_where_python_was_killed_and_back(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make()
    drivers.python(out=tmp_path / "whole")
    with pytest.raises(_Killed):
        run(drivers.options, _KillAt())
    journal = tmp_path / "cpp" / "journal.partial.bin"
    journal.write_bytes(journal.read_bytes()[:-5])
    result = drivers.cpp(resume=True)
    assert result.returncode == 0
    assert "warning: the last 87 bytes of the journal are damaged: going on after step 32\n" in result.stderr
    assert "resuming after step 32" in result.stderr
    _assert_same(tmp_path / "cpp", tmp_path / "whole")

    folder = tmp_path / "cpp-2"
    _kill_cpp(drivers, folder, steps=STEPS)
    drivers.python(out=folder, resume=True)
    assert (folder / "adapter.safetensors").read_bytes() == (tmp_path / "whole" / "adapter.safetensors").read_bytes()


def _kill_cpp(drivers: Drivers, folder: Path, *, steps: int) -> int:
    """Kill a run with SIGKILL once some steps are in its journal; return how many are."""
    command = [drivers.executable, *drivers.arguments(out=folder, steps=steps)]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    journal = folder / "journal.partial.bin"
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if journal.exists() and journal.stat().st_size > 2000:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    return len(read_journal(journal).steps) if journal.exists() else STEPS


def test_kill_minus_nine(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make()
    assert drivers.cpp(out=tmp_path / "whole").returncode == 0
    assert 0 < _kill_cpp(drivers, tmp_path / "cpp", steps=STEPS)
    refused = drivers.cpp()
    if (tmp_path / "cpp" / "journal.partial.bin").exists():
        assert refused.returncode == 2
        assert "unfinished run" in refused.stderr and "--resume" in refused.stderr
        assert drivers.cpp(resume=True).returncode == 0
    assert (tmp_path / "cpp" / "adapter.safetensors").read_bytes() == (
        tmp_path / "whole" / "adapter.safetensors"
    ).read_bytes()


def test_sigint_finishes_the_step_and_keeps_everything(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make(steps=10**6)
    command = [drivers.executable, *drivers.arguments()]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    journal = tmp_path / "cpp" / "journal.partial.bin"
    while not (journal.exists() and journal.stat().st_size > 2000):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    steps = len(read_journal(tmp_path / "cpp" / "journal.bin").steps)
    assert out.startswith(f"steps {steps}  state sha256 ")
    assert (tmp_path / "cpp" / "adapter.safetensors").exists()


def test_memory_does_not_grow(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make(steps=800, eval_rows=None, eval_every=0)
    command = list(map(str, [drivers.executable, *drivers.arguments()]))
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    journal, sizes = tmp_path / "cpp" / "journal.partial.bin", []
    while process.poll() is None:
        fields = (Path("/proc") / str(process.pid) / "status").read_text().splitlines()
        anonymous = [int(line.split()[1]) for line in fields if line.startswith("RssAnon")]
        # The driver renames its journal at the end, at any moment.
        with contextlib.suppress(FileNotFoundError):
            if anonymous and journal.stat().st_size > 160 + 20 * 92:
                sizes.append(anonymous[0])
    assert process.returncode == 0
    assert len(sizes) > 10
    # kB; the thread pool's stacks are touched at odd times.
    assert max(sizes[len(sizes) // 2 :]) - sizes[0] <= max(64, 0.01 * sizes[0])


@pytest.mark.parametrize(("flag", "value"), [("seed", 5), ("lr", 0.5), ("steps", 7), ("estimator", "std")])
def test_resuming_with_other_flags_is_refused(make: Callable[..., Drivers], flag: str, value: Any) -> None:
    drivers = make()
    with pytest.raises(_Killed):
        run(drivers.options, _KillAt())
    result = drivers.cpp(resume=True, **{flag: value})
    assert result.returncode == 2
    assert f"error: --{flag} differs from the run to resume" in result.stderr


def test_help(executable: Path) -> None:
    result = run_driver(executable, "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: prge_train PROGRAM")


def test_weights_beside_the_program_are_missed_and_distinguished(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make("device", steps=2, eval_rows=None, eval_every=0)
    alone = tmp_path / "alone.pte"
    alone.write_bytes(drivers.options.program.read_bytes())
    result = drivers.cpp(program=alone)
    assert result.returncode != 0 and "the program's weights are missing: expected" in result.stderr
    data = bytearray(drivers.options.program.with_suffix(".ptd").read_bytes())
    data[-100] ^= 1
    alone.with_suffix(".ptd").write_bytes(data)
    result = drivers.cpp(program=alone)
    assert result.returncode != 0 and "alone.ptd belongs to another program" in result.stderr


def test_state_on_a_device_is_resumed_by_replaying_every_step(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make("device", steps=12, eval_rows=None, eval_every=0, snapshot_every=4)
    assert drivers.cpp().returncode == 0
    whole = (tmp_path / "cpp" / "journal.bin").read_bytes()
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "journal.partial.bin").write_bytes(whole[: len(whole) * 2 // 3])
    assert drivers.cpp(out=tmp_path / "again", resume=True).returncode == 0
    for name in ("journal.bin", "adapter.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "cpp" / name).read_bytes()
