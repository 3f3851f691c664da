"""Do the runs of the scoreboard again with the code as it is, and write the page anew.

    python tools/remeasure.py                                           # every board; continues where it was stopped
    python tools/remeasure.py board-mails board-minilm --only exact     # two boards, one method

A line of a result file names the commit that had changed the code last when its run was done. Runs of other commits are
done again one by one, and a line is replaced when its run has ended. These are the runs that the page shows; those of
options that dev did not choose stay as they are. The head of each study's file says how to make what it reads.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
from collections.abc import Sequence
from pathlib import Path

import scoreboard
from board.scores import best_runs

from prgec.core.machine.files import write_atomic
from prgec.errors import DataError, PrgecError
from prgec.lab.study.isolated import train_alone
from prgec.lab.study.results import Result, line_of, read_results
from prgec.lab.study.spec import Run, Study, read_study

# A run follows from these; tests, tools and documents change no figure.
_CODE = ("prgec", "passes", "backends", "runtime_ops", "pyproject.toml", "CMakeLists.txt")


def main() -> None:
    """Parse the command line; do what is due and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kept = sorted(path.stem for path in scoreboard.KEPT.glob("*.jsonl"))
    boards = [name for name in kept if (scoreboard.STUDIES / f"{name}.toml").exists()]
    parser.add_argument("boards", nargs="*", default=boards, metavar="BOARD", help=f"of {', '.join(boards)}")
    parser.add_argument("--only", action="append", metavar="METHOD", help="of these methods (repeatable)")
    options = parser.parse_args()
    commit = code_commit()
    try:
        for board in options.boards:
            remeasure(board, commit, options.only or ())
    except PrgecError as error:
        raise SystemExit(f"error: {error}") from error


def code_commit() -> str:
    """Return the commit that changed the code last.

    Raises:
        SystemExit: If the code differs from it.
    """
    if _git("status", "--porcelain", "--", *_CODE):
        raise SystemExit("error: the code differs from its commit. Hint: commit it first, so that figures can name it")
    return _git("log", "-1", "--format=%h", "--abbrev=12", "--", *_CODE)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(scoreboard.ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def remeasure(board: str, commit: str, only: Sequence[str]) -> None:
    """Do the runs of a board that are of other commits; the page is written after each.

    Raises:
        DataError: If a file of the study cannot be read.
    """
    study = read_study(scoreboard.STUDIES / f"{board}.toml")
    path = scoreboard.KEPT / f"{board}.jsonl"
    due = _due(study, path, commit, only)
    print(f"{board}: {len(due)} to do", flush=True)
    for number, result in enumerate(due, 1):
        print(f"{board}: {result.method}, seed {result.seed}, {number} of {len(due)}", flush=True)
        found = _again(study, result)
        print(f"  {_text(result)} -> {_text(found)}", flush=True)
        short = dataclasses.replace(scoreboard.shortened(found), commit=commit)
        lines = [short if _is_same_run(each, short) else each for each in read_results(path).values()]
        write_atomic(path, b"".join(map(line_of, lines)))
        scoreboard.write(scoreboard.STUDIES, scoreboard.KEPT, scoreboard.PAGE)


def _due(study: Study, path: Path, commit: str, only: Sequence[str]) -> list[Result]:
    best = best_runs(study, list(read_results(path).values()))
    runs = [each for method, of_method in best.items() if not only or method in only for each in of_method]
    return [each for each in runs if each.commit != commit]


def _again(study: Study, like: Result) -> Result:
    for task in study.tasks:
        if task.name == like.task:
            return train_alone(Run(like.method, task, like.options, like.seed), study)
    raise DataError(f"a result is of task {like.task!r}, which the study lacks", where=study.path)


def _is_same_run(one: Result, other: Result) -> bool:
    return (one.method, one.task, one.options, one.seed) == (other.method, other.task, other.options, other.seed)


def _text(result: Result) -> str:
    memory = "" if result.memory_bytes is None else f", {result.memory_bytes / 1e6:.1f} MB"
    return f"{100 * result.test_accuracy:.1f} %{memory}, {result.curve[-1].cpu_s:.0f} CPU s"


if __name__ == "__main__":
    main()
