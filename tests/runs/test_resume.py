"""A run that was killed goes on as if nothing had happened, and its journal alone rebuilds every step."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from prgec.cli.main import main
from prgec.core.formats.journal import read_journal
from prgec.errors import DataError, PrgecError, UsageError
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.result import Listener
from prgec.runtime.runs.run import run
from prgec.runtime.training.step import StepResult
from tests.runs.killing import assert_same_run, kill, kill_in_log, options_of

STEPS = 23


@pytest.fixture
def options(tiny_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path: Path) -> RunOptions:
    return options_of(tiny_pte, train_jsonl, dev_jsonl, tmp_path / "out", STEPS)


@pytest.fixture(scope="module")
def whole(tiny_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run, never interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run(options_of(tiny_pte, train_jsonl, dev_jsonl, out, STEPS))
    return out


def _folder(options: RunOptions) -> Path:
    assert options.out is not None
    return options.out


@pytest.mark.parametrize("step", [1, 3, 4, 5, 20, STEPS])
def test_equals_the_run_that_was_never_killed(options: RunOptions, whole: Path, step: int) -> None:
    kill(options, step)
    run(replace(options, resume=True))
    assert_same_run(_folder(options), whole)


@pytest.mark.parametrize("name", ["evaluation", "state", "commit"])
@pytest.mark.parametrize("call", [0, 1, 2, -1])
def test_killed_between_two_records(options: RunOptions, whole: Path, name: str, call: int) -> None:
    """Die right after the n-th evaluation, or the n-th hash of a state, or before the files get their names."""
    calls = {"evaluation": 6, "state": 6, "commit": 1}[name]
    kill_in_log(options, name, call % calls + 1)
    run(replace(options, resume=True))
    assert_same_run(_folder(options), whole)


def test_killed_again_and_again(options: RunOptions, whole: Path) -> None:
    kill(options, 2)
    for step in (3, 9, 10, 17):
        kill(replace(options, resume=True), step)
    run(replace(options, resume=True))
    assert_same_run(_folder(options), whole)


def test_torn_journal_goes_on_at_the_last_whole_record(
    options: RunOptions, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = kill(options, 11) / "journal.partial.bin"
    journal.write_bytes(journal.read_bytes()[:-1])
    run(replace(options, resume=True))
    assert caplog.messages == ["the last 71 bytes of the journal are damaged: going on after step 10"]
    assert_same_run(_folder(options), whole)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def _of_another_run(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-4:] = b"\0\0\0\x3f"
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [Path.unlink, _truncate, _of_another_run])
def test_a_bad_snapshot_costs_time_only(options: RunOptions, whole: Path, damage: Callable[[Path], None]) -> None:
    damage(kill(options, 11) / "snapshot.safetensors")
    run(replace(options, resume=True))
    assert_same_run(_folder(options), whole)


def test_a_snapshot_ahead_of_the_journal_is_not_used(options: RunOptions, whole: Path) -> None:
    folder = kill(options, 11)
    journal = folder / "journal.partial.bin"
    ends = _ends(journal)
    journal.write_bytes(journal.read_bytes()[: ends[7]])
    run(replace(options, resume=True))
    assert_same_run(folder, whole)


def _ends(journal: Path) -> dict[int, int]:
    """Length of a journal up to and with each step."""
    data, ends, place = journal.read_bytes(), {}, 176
    sizes = {1: 72, 2: 40, 3: 48}
    while place < len(data):
        kind, step = data[place + 4], data[place + 8]
        place += sizes[kind]
        if kind == 1:
            ends[step] = place
    return ends


def test_interrupted_run_goes_on(options: RunOptions, whole: Path) -> None:
    class Stop(Listener):
        done = False

        def on_step(self, result: StepResult) -> None:
            self.done = result.step == 9

    stop = Stop()
    assert run(options, stop, lambda: stop.done).interrupted
    run(replace(options, resume=True))
    assert (_folder(options) / "adapter.safetensors").read_bytes() == (whole / "adapter.safetensors").read_bytes()


def test_starts_where_nothing_was_begun(options: RunOptions, whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(replace(options, resume=True))
    assert "nothing to resume" in caplog.text
    assert_same_run(_folder(options), whole)


def test_from_an_adapter(options: RunOptions, whole: Path, tmp_path: Path) -> None:
    options = replace(options, adapter=whole / "adapter.safetensors")
    run(replace(options, out=tmp_path / "reference"))
    kill(options, 3)
    with pytest.raises(UsageError, match="the adapter to start from differs"):
        run(replace(options, adapter=None, resume=True))
    run(replace(options, resume=True))
    assert_same_run(_folder(options), tmp_path / "reference")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "--seed differs from the run to resume: 1, not 0"),
        ({"steps": 50}, "--steps differs.*50, not 23"),
        ({"lr": 0.1}, "--lr differs"),
        ({"eps": 0.1}, "--eps differs"),
        ({"schedule": "cosine"}, "--lr-schedule or --warmup differs.*cosine, not linear"),
        ({"estimator": "std"}, "--estimator differs"),
    ],
)
def test_other_flags_are_refused(options: RunOptions, change: dict[str, object], message: str) -> None:
    folder = kill(options, 3)
    before = (folder / "journal.partial.bin").read_bytes()
    with pytest.raises(UsageError, match=message):
        run(replace(options, resume=True, **change))
    assert (folder / "journal.partial.bin").read_bytes() == before


def test_other_data_are_refused(options: RunOptions, dev_jsonl: Path) -> None:
    kill(options, 3)
    with pytest.raises(UsageError, match="the number of examples differs.*37, not 64"):
        run(replace(options, resume=True, data=dev_jsonl))


def test_an_unfinished_run_is_not_overwritten(options: RunOptions, whole: Path) -> None:
    kill(options, 6)
    with pytest.raises(UsageError, match="holds an unfinished run of 6 steps.*--resume"):
        run(options)
    run(replace(options, force=True))
    assert_same_run(_folder(options), whole)


def test_a_complete_run_has_nothing_to_resume(options: RunOptions) -> None:
    run(options)
    with pytest.raises(UsageError, match="the run is complete: all 23 steps are done"):
        run(replace(options, resume=True))


def test_resume_needs_a_folder(options: RunOptions) -> None:
    with pytest.raises(UsageError, match="--resume needs --out"):
        run(replace(options, resume=True, out=None))


def test_kill_minus_nine(options: RunOptions, tmp_path: Path) -> None:
    arguments = ["--data", options.data, "--steps", 20000, "--lr", 0.01, "--out", tmp_path / "killed"]
    command = [sys.executable, "-m", "prgec", "run", str(options.program), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = tmp_path / "killed" / "journal.partial.bin"
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.stat().st_size > 50 * 72) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(read_journal(journal).steps)
    assert done >= 48
    # The rest of so long a run is not needed: what the journal says of its state is checked by the replay.
    assert main(["replay", str(journal), "--program", str(options.program), "-o", str(tmp_path / "a")]) == 0


def test_replay_rebuilds_the_adapter(options: RunOptions, whole: Path, tmp_path: Path) -> None:
    moved = shutil.copy(whole / "journal.bin", tmp_path / "travelled")
    assert main(["replay", str(moved), "--program", str(options.program), "-o", str(tmp_path / "a")]) == 0
    assert (tmp_path / "a").read_bytes() == (whole / "adapter.safetensors").read_bytes()


def test_replay_rebuilds_any_step(options: RunOptions, whole: Path, tmp_path: Path, capsys) -> None:
    kill(options, 9)
    arguments = ["--program", str(options.program), "--step", "8", "-o", str(tmp_path / "a"), "--json"]
    assert main(["replay", str(whole / "journal.bin"), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["verified"]
    assert (tmp_path / "a").read_bytes() == (_folder(options) / "snapshot.safetensors").read_bytes()


def _replay(journal: Path, program: Path, *flags: str) -> None:
    from prgec.runtime.engines.executorch.open import open_pte
    from prgec.runtime.runs.resume import rebuild

    rebuild(open_pte(program), read_journal(journal), int(flags[0]) if flags else None)


def test_replay_refuses_what_it_cannot_do(
    options: RunOptions, whole: Path, patched_pte: Callable[[bytes, bytes], Path], tmp_path: Path
) -> None:
    journal = whole / "journal.bin"
    with pytest.raises(UsageError, match="--step is 24; the journal has 23 steps"):
        _replay(journal, options.program, "24")
    other = patched_pte(b'"a_seed": 3', b'"a_seed": 4')
    with pytest.raises(DataError, match="of a program with other weights"):
        _replay(journal, other)
    dual = patched_pte(b'"state": "seeded"', b'"state": "dual"  ')
    with pytest.raises(PrgecError, match="dual"):
        _replay(journal, dual)
