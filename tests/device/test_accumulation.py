"""Steps of several calls in the C++ driver as in the Python driver: bit for bit, killed, refused."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from prgec.core.formats.journal import read_journal
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.run import run
from prgec.runtime.training.gradient_trainer import GradientTrainer
from tests.device.conftest import Drivers, write_rows
from tests.runs.killing import Killed, kill, metrics_of

STEPS, CALLS = 40, 3


@pytest.fixture
def drivers(executable: Path, gathering_pte: Path, tmp_path: Path) -> Drivers:
    """A run whose whole result is in `whole`."""
    rows = write_rows(tmp_path / "rows.bin", gathering_pte, examples=7, candidates=2, seed=1)
    eval_rows = write_rows(tmp_path / "eval.bin", gathering_pte, examples=9, candidates=3, seed=2)
    options = RunOptions(
        program=gathering_pte,
        rows=rows,
        eval_rows=eval_rows,
        steps=STEPS,
        lr=0.02,
        accumulate=CALLS,
        eval_every=25,
        snapshot_every=10,
        out=tmp_path / "cpp",
    )
    made = Drivers(executable, options)
    assert made.cpp(out=tmp_path / "whole").returncode == 0
    return made


def _assert_same(first: Path, second: Path) -> None:
    for name in ("journal.bin", "adapter.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert metrics_of(first) == metrics_of(second)


def test_equals_the_python_driver(drivers: Drivers, tmp_path: Path) -> None:
    drivers.python(out=tmp_path / "python")
    _assert_same(tmp_path / "whole", tmp_path / "python")
    journal = read_journal(tmp_path / "whole" / "journal.bin")
    assert len(journal.steps) == STEPS and journal.header.batch_size == 2 * CALLS
    # It is another run than one of single calls.
    assert drivers.cpp(out=tmp_path / "single", accumulate=1).returncode == 0
    single = read_journal(tmp_path / "single" / "journal.bin").steps
    assert [step.losses[0, 0] for step in single] != [step.losses[0, 0] for step in journal.steps]


@pytest.mark.slow
def test_equals_it_on_a_compiled_program(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make("gathering", accumulate=CALLS, steps=20, snapshot_every=7)
    assert drivers.cpp().returncode == 0
    drivers.python(out=tmp_path / "python")
    _assert_same(tmp_path / "cpp", tmp_path / "python")


def test_goes_on_where_python_was_killed_in_the_middle_of_a_step(drivers: Drivers, tmp_path: Path) -> None:
    real, seen = GradientTrainer.gather, []

    def dying(self: GradientTrainer, *arguments: object) -> None:
        real(self, *arguments)  # type: ignore[arg-type]
        seen.append(self.step_number)
        if len(seen) == 28:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(GradientTrainer, "gather", dying)
        run(drivers.options)
    assert seen[-2:] == [13, 13], "not in the middle of a step"
    result = drivers.cpp(resume=True)
    assert result.returncode == 0
    assert "warning: taking steps 11 to 13 again, from the last snapshot\n" in result.stderr
    _assert_same(tmp_path / "cpp", tmp_path / "whole")


def test_goes_on_where_it_was_killed(drivers: Drivers, tmp_path: Path) -> None:
    """Most of the time is spent inside a step."""
    for name in ("cpp", "python"):
        folder = tmp_path / name
        command = [drivers.executable, *drivers.arguments(out=folder)]
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (folder / "snapshot.safetensors").exists():
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() != 0, "it was not stopped in time"
    assert drivers.cpp(resume=True).returncode == 0
    drivers.python(resume=True, out=tmp_path / "python")
    for name in ("cpp", "python"):
        _assert_same(tmp_path / name, tmp_path / "whole")


def test_refuses_in_one_line(drivers: Drivers, tiny_pte: Path, gradient_pte: Path, tmp_path: Path) -> None:
    for program in (tiny_pte, gradient_pte):
        result = drivers.cpp(program=program, out=tmp_path / "none")
        assert (result.returncode, result.stderr) == (
            2,
            f"error: --accumulate {CALLS} needs a program that gathers gradients ({program}). "
            "Hint: compile it with --method exact --accumulate, or leave the flag out\n",
        )
    assert "error: --accumulate is 0; expected 1 to 1024" in drivers.cpp(accumulate=0).stderr
    kill(drivers.options, 5)
    result = drivers.cpp(resume=True, accumulate=2)
    assert result.returncode == 2
    assert "error: the program's batch size or --accumulate differs from the run to resume" in result.stderr
