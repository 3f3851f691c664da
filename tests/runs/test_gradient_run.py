"""A run of a program that computes its gradients goes on from its last snapshot, and ends as if never killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.cli.main import main
from prgec.core.contract.engine import optimizer_names
from prgec.core.formats.adapter import load_snapshot, read_adapter
from prgec.core.formats.journal import read_journal
from prgec.core.formats.run_folder import RunFolder
from prgec.errors import NumericsError, ProgramError, UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.result import Listener
from prgec.runtime.runs.run import run
from prgec.runtime.training.limits import SKIP
from prgec.runtime.training.step import StepResult
from tests.runs.killing import Killed, assert_same_run, kill, kill_in_log, metrics_of, options_of
from tests.tiny_gradient import GRADIENT_MANIFEST

STEPS = 13
SNAPSHOT = "snapshot.safetensors"


@pytest.fixture
def options(gradient_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path: Path) -> RunOptions:
    return options_of(gradient_pte, train_jsonl, dev_jsonl, tmp_path / "out", STEPS)


@pytest.fixture(scope="module")
def whole(gradient_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run, never interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run(options_of(gradient_pte, train_jsonl, dev_jsonl, out, STEPS))
    return out


@pytest.mark.parametrize("step", [1, 4, 5, 9, STEPS])
def test_equals_the_run_that_was_never_killed(options: RunOptions, whole: Path, step: int) -> None:
    folder = kill(options, step)
    run(replace(options, resume=True))
    assert_same_run(folder, whole)


@pytest.mark.parametrize(
    ("name", "call"), [("evaluation", 1), ("evaluation", 2), ("state", 1), ("state", 2), ("commit", 1)]
)
def test_killed_between_two_records(options: RunOptions, whole: Path, name: str, call: int) -> None:
    """Die right after an evaluation or the hash of a state, before its snapshot, or before files get their names."""
    kill_in_log(options, name, call)
    run(replace(options, resume=True))
    assert options.out is not None
    assert_same_run(options.out, whole)


def test_killed_before_the_summary_takes_few_steps_again(
    options: RunOptions, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The last snapshot stays until everything is written: without it the run began anew."""

    def dying(self: RunFolder, summary: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "write_summary", dying)
        run(options)
    assert options.out is not None and (options.out / "journal.bin").exists()
    run(replace(options, resume=True))
    assert [each for each in caplog.messages if "again" in each] == [
        "taking steps 13 to 13 again, from the last snapshot"
    ]
    assert_same_run(options.out, whole)


def test_killed_again_and_again(options: RunOptions, whole: Path) -> None:
    folder = kill(options, 3)
    for step in (6, 7, 11):
        kill(replace(options, resume=True), step)
    run(replace(options, resume=True))
    assert_same_run(folder, whole)


def test_interrupted_run_goes_on(options: RunOptions, whole: Path) -> None:
    """An orderly end keeps the adapter of its last step, but goes on from the snapshot, which has the optimiser."""

    class Stop(Listener):
        done = False

        def on_step(self, result: StepResult) -> None:
            self.done = result.step == 6

    stop = Stop()
    assert run(options, stop, lambda: stop.done).interrupted
    result = run(replace(options, resume=True))
    assert result.state_sha256 == json.loads((whole / "run.json").read_text())["state_sha256"]


def test_says_which_steps_it_takes_again(options: RunOptions, caplog: pytest.LogCaptureFixture) -> None:
    kill(options, 7)
    run(replace(options, resume=True))
    assert "taking steps 5 to 7 again, from the last snapshot" in caplog.messages


def _damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize("damage", [Path.unlink, _damaged])
def test_a_bad_snapshot_costs_time_only(options: RunOptions, whole: Path, damage: Callable[[Path], None]) -> None:
    folder = kill(options, 7)
    damage(folder / SNAPSHOT)
    run(replace(options, resume=True))
    assert_same_run(folder, whole)


def test_snapshots_keep_the_optimiser(options: RunOptions) -> None:
    path = kill(options, 7) / SNAPSHOT
    tensors, _ = read_adapter(path)
    assert set(tensors) == {"head.lora_B", *optimizer_names(GRADIENT_MANIFEST)}
    program = open_pte(options.program)
    load_snapshot(path, program)
    for name, value in {**program.read_state(), **program.read_optimizer()}.items():
        np.testing.assert_array_equal(value, tensors[name], err_msg=name)
        assert value.any()


def test_an_adapter_is_no_snapshot(options: RunOptions, whole: Path) -> None:
    program = open_pte(options.program)
    before = program.state_sha256()
    with pytest.raises(ProgramError, match="the snapshot has no prge_optimizer: it is of another optimiser"):
        load_snapshot(whole / "adapter.safetensors", program)
    assert program.state_sha256() == before


def _called(path: Path, target: Path, **changes: Any) -> Path:
    """Copy a program that says other things of itself."""
    data, said = path.read_bytes(), GRADIENT_MANIFEST.to_json().encode()
    # The model's name is nobody's business here, and what it leaves is room.
    other = replace(GRADIENT_MANIFEST, model="", **changes).to_json().encode().ljust(len(said))
    assert said in data and len(other) == len(said)
    target.write_bytes(data.replace(said, other))
    return target


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "norm"}, "^the program's optimizer differs from the run to resume: norm, not adamw"),
        ({"method": "shortcut", "pipeline": "p"}, "^the program differs from the run to resume"),
        ({"pipeline": "clip"}, "^the program differs from the run to resume"),
    ],
)
def test_another_rule_of_steps_is_refused(
    options: RunOptions, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Steps are taken again, so a run goes on with the optimiser, method and numbers it was begun with."""
    folder = kill(options, 6)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    other = _called(options.program, tmp_path / "other.pte", **changes)
    with pytest.raises(UsageError, match=rf"{message}.*Hint: resume with the program and the flags") as error:
        run(replace(options, program=other, resume=True))
    assert "\n" not in str(error.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    # The same rules under another name.
    run(replace(options, program=_called(options.program, tmp_path / "renamed.pte"), resume=True))


def test_a_program_of_the_other_kind_is_refused(options: RunOptions, tiny_pte: Path) -> None:
    kill(options, 6)
    with pytest.raises(UsageError, match="^the program's q differs from the run to resume: 2, not 1"):
        run(replace(options, program=tiny_pte, resume=True))


def test_a_snapshot_is_of_one_step_though_states_are_equal(
    options: RunOptions, caplog: pytest.LogCaptureFixture
) -> None:
    """With a rate of 0 all weights stay, and moments move on: hashes of weights do not distinguish steps."""
    kill_in_log(replace(options, lr=0.0), "state", 2)
    assert options.out is not None
    states = read_journal(options.out / "journal.partial.bin").states
    assert set(states) == {4, 8} and states[4] == states[8]
    run(replace(options, lr=0.0, resume=True))
    assert "taking steps 5 to 8 again, from the last snapshot" in caplog.messages


def test_losses_fall(whole: Path) -> None:
    losses = [line["loss"] for line in metrics_of(whole) if "grad_norm" in line]
    assert len(losses) == STEPS and sum(losses[-3:]) < 0.95 * sum(losses[:3])  # type: ignore[arg-type]


def test_divergence_stops_with_one_line(options: RunOptions) -> None:
    with pytest.raises(NumericsError, match="^the gradient of step 2 is not finite; training stopped, state kept"):
        run(replace(options, lr=1e38, eval_every=0, eval_data=None))
    assert options.out is not None
    assert len(read_journal(options.out / "journal.bin").steps) == 1
    assert (options.out / "adapter.safetensors").is_file()


def test_skipping_goes_on(options: RunOptions) -> None:
    result = run(replace(options, lr=1e38, eval_every=0, eval_data=None, not_finite=SKIP))
    assert result.steps == STEPS
    assert options.out is not None
    skipped = [line["step"] for line in metrics_of(options.out) if line.get("limited") == "skipped"]
    assert skipped == list(range(2, STEPS + 1))


def test_a_journal_alone_is_not_enough(
    options: RunOptions, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(whole / "journal.bin"), "--program", str(options.program), "-o", str(tmp_path / "again")]
    assert main(["replay", *arguments]) == UsageError.exit_code
    assert "a program that computes gradients makes its steps from the rows" in capsys.readouterr().err
