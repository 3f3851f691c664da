"""Do the runs of the scoreboard again with the code as it is, and write the page anew.

    python tools/remeasure.py                                           # every board; continues where it was stopped
    python tools/remeasure.py board-mails board-minilm --only exact     # two boards, one method
    python tools/remeasure.py board-mails --all                         # every seed

A line of a result file names the commit that had changed the code last when its run was done. One run of each method
and task is done again. Where its accuracy is what it was, the other seeds stand, for they follow from the same code;
where it is not, they are done again, too. A run whose losses on dev are the same to the last bit is not tested again,
for its weights are the same. Those of PyTorch are other bits on another processor: --test tests every run, in one go.
These are the runs that the page shows; those of options that dev did not choose stay as they are. The head of each
study's file says how to make what it reads.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import scoreboard
from board.commit import code_commit
from board.scores import best_runs

from prgec.core.machine.files import write_atomic
from prgec.core.machine.quiet import quiet_libraries
from prgec.errors import DataError, PrgecError
from prgec.lab.study.isolated import Train, train_alone
from prgec.lab.study.results import Result, line_of, read_results
from prgec.lab.study.spec import Run, Study, read_study

# Rows that are scored in place of a test: enough that every label is among them.
_FEW = 40


def main() -> None:
    """Parse the command line; do what is due and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kept = sorted(path.stem for path in scoreboard.KEPT.glob("*.jsonl"))
    boards = [name for name in kept if (scoreboard.STUDIES / f"{name}.toml").exists()]
    parser.add_argument("boards", nargs="*", default=boards, metavar="BOARD", help=f"of {', '.join(boards)}")
    parser.add_argument("--only", action="append", metavar="METHOD", help="of these methods (repeatable)")
    parser.add_argument("--all", action="store_true", help="every seed, whatever the first one gives")
    parser.add_argument("--test", action="store_true", help="test every run, whatever its losses on dev")
    options = parser.parse_args()
    commit = code_commit()
    try:
        for board in options.boards:
            remeasure(board, commit, options.only or (), every_seed=options.all, tests=options.test)
    except PrgecError as error:
        raise SystemExit(f"error: {error}") from error


def remeasure(
    board: str, commit: str, only: Sequence[str] = (), *, every_seed: bool = False, tests: bool = False
) -> None:
    """Do the runs of a board that are of other commits; the page is written after each method and task.

    Raises:
        DataError: If a file of the study cannot be read.
    """
    study = read_study(scoreboard.STUDIES / f"{board}.toml")
    path = scoreboard.KEPT / f"{board}.jsonl"
    due = _due(study, path, commit, only, every_seed)
    print(f"{board}: {len(due)} methods and tasks to do", flush=True)
    for number, runs in enumerate(due, 1):
        print(f"{board}: {runs[0].method}, {runs[0].task}, {number} of {len(due)}", flush=True)
        # A kill leaves all of them as they were, so that what the first one gave need not be kept.
        found = [replace(each, commit=commit) for each in _redone(study, runs, every_seed, tests)]
        kept = read_results(path).values()
        lines = [next((new for new in found if _is_same_run(each, new)), each) for each in kept]
        write_atomic(path, b"".join(map(line_of, lines)))
        scoreboard.write(scoreboard.STUDIES, scoreboard.KEPT, scoreboard.PAGE)


def _due(study: Study, path: Path, commit: str, only: Sequence[str], every_seed: bool) -> list[list[Result]]:
    """Return the runs of each method and task of which one is due, first seed first; those of this commit left out."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for method, of_method in best_runs(study, list(read_results(path).values())).items():
        if not only or method in only:
            for each in sorted(of_method, key=lambda run: run.seed):
                groups.setdefault((method, each.task), []).append(each)
    left = [(runs[0], [run for run in runs if run.commit != commit]) for runs in groups.values()]
    return [due for first, due in left if due and (every_seed or due[0] is first)]


def _redone(study: Study, runs: Sequence[Result], every_seed: bool, tests: bool) -> list[Result]:
    """Do the first run again, and the others where it gave another accuracy."""
    first, *others = runs
    with _fresh() as train:
        found = [_again(study, first, tests, train)]
        if every_seed or found[0].test_accuracy != first.test_accuracy:
            found += [_again(study, each, tests, train) for each in others]
    return found


def _again(study: Study, like: Result, tests: bool, train: Train) -> Result:
    for task in study.tasks:
        if task.name == like.task:
            run = Run(like.method, task, like.options, like.seed)
            found = None if tests else _at_the_same_end(run, study, like, train)
            found = found or scoreboard.shortened(train(run, study))
            print(f"  seed {like.seed}: {_text(like)} -> {_text(found)}", flush=True)
            return found
    raise DataError(f"a result is of task {like.task!r}, which the study lacks", where=study.path)


def _at_the_same_end(run: Run, study: Study, like: Result, train: Train) -> Result | None:
    """Do a run without its test, and return it with the test scores it had; None if it ends at other weights.

    Testing takes a third of the time of a long run. Scores follow from the weights, and weights whose loss on dev is
    the same to the last bit are the same.
    """
    with tempfile.TemporaryDirectory() as name:
        few = Path(name) / "few.jsonl"
        few.write_bytes(b"".join(run.task.dev.read_bytes().splitlines(keepends=True)[:_FEW]))
        untested = replace(run, task=replace(run.task, test=few))
        found = scoreboard.shortened(train(untested, study))
    if _ends(found) != _ends(like):
        return None
    return replace(like, key=run.key(study), curve=found.curve, memory_bytes=found.memory_bytes)


def _ends(result: Result) -> tuple[object, ...]:
    """The parts of a result that follow from the weights it began and ended with."""
    return result.steps, result.failure, [(each.loss, each.accuracy) for each in result.curve]


@contextlib.contextmanager
def _fresh() -> Iterator[Train]:
    """A process of which nothing was imported or made before: leftovers in the heap would count as memory of a run.

    Seeds of one method and task share it, so that their program is compiled once.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), quiet_libraries) as pool:
        yield lambda run, study: pool.submit(train_alone, run, study).result()


def _is_same_run(one: Result, other: Result) -> bool:
    return (one.method, one.task, one.options, one.seed) == (other.method, other.task, other.options, other.seed)


def _text(result: Result) -> str:
    memory = "" if result.memory_bytes is None else f", {result.memory_bytes / 1e6:.1f} MB"
    return f"{100 * result.test_accuracy:.1f} %{memory}, {result.curve[-1].cpu_s:.0f} CPU s"


if __name__ == "__main__":
    main()
