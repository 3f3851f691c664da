"""A run whose steps are several calls: killed between two of them, refused, and the same run as with larger calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prgec.cli.main import main
from prgec.errors import UsageError
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.run import run
from prgec.runtime.training.gradient_trainer import GradientTrainer
from tests.runs.killing import Killed, assert_same_run, kill, metrics_of, options_of

STEPS, CALLS = 9, 3


@pytest.fixture
def options(gathering_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path: Path) -> RunOptions:
    return replace(options_of(gathering_pte, train_jsonl, dev_jsonl, tmp_path / "out", STEPS), accumulate=CALLS)


@pytest.fixture(scope="module")
def whole(gathering_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run, never interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run(replace(options_of(gathering_pte, train_jsonl, dev_jsonl, out, STEPS), accumulate=CALLS))
    return out


def _kill_behind_call(options: RunOptions, number: int) -> None:
    """Run until after the n-th call that only gathers."""
    real, seen = GradientTrainer.gather, []

    def dying(self: GradientTrainer, *arguments: object) -> None:
        real(self, *arguments)  # type: ignore[arg-type]
        seen.append(number)
        if len(seen) == number:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(GradientTrainer, "gather", dying)
        run(options)


@pytest.mark.parametrize("call", [1, 7, 16])
def test_killed_in_the_middle_of_a_step(options: RunOptions, whole: Path, call: int) -> None:
    _kill_behind_call(options, call)
    # Before the first step there is nothing to go on with, and nothing to lose.
    run(replace(options, resume=True))
    assert options.out is not None
    assert_same_run(options.out, whole)


def test_losses_fall(whole: Path) -> None:
    losses = [line["loss"] for line in metrics_of(whole) if "grad_norm" in line]
    assert len(losses) == STEPS and losses[-1] < 0.95 * losses[0]  # type: ignore[operator]


def test_goes_on_with_the_same_number_of_calls_alone(options: RunOptions) -> None:
    kill(options, 6)
    with pytest.raises(UsageError) as error:
        run(replace(options, resume=True, accumulate=2))
    assert str(error.value).startswith(
        "the program's batch size or --accumulate differs from the run to resume: 4, not 6 ("
    )


def test_a_program_that_cannot_gather_is_refused(
    options: RunOptions, gradient_pte: Path, tiny_pte: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for program in (gradient_pte, tiny_pte):
        arguments = ["run", str(program), "--data", str(options.data), "--accumulate", "2", "--out", str(options.out)]
        assert main(arguments) == UsageError.exit_code
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"error: --accumulate 2 needs a program that gathers gradients ({program}). "
            "Hint: compile it with --method exact --accumulate, or leave the flag out"
        )


@pytest.mark.parametrize("number", [0, -1, 1025])
def test_impossible_numbers_are_refused(options: RunOptions, number: int) -> None:
    with pytest.raises(UsageError, match=f"^--accumulate is {number}; expected 1 to 1024$"):
        run(replace(options, accumulate=number))
