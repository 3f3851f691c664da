"""Measure again what runs of compiled programs take, with the programs that today's compiler makes of their options.

    python tools/remeasure.py studies/board-gemma3.toml studies/results/board-gemma3.jsonl
    python tools/remeasure.py STUDY RESULTS --only exact --only shortcut

Scores of a run outlive the programs it ran: a newer compiler gives the same losses in less memory. A run holds the most
within its first steps, which make room for the longest rows, so that a short one says what a whole one would: a few
steps and few scored rows, of seed 0, compiled without the task's own rows, which choose how weights are rounded and not
how many there are. Its figure takes the place of what all runs say whose options differ in the rate alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from prgec.core.machine.files import write_atomic
from prgec.lab.study.isolated import train_alone
from prgec.lab.study.results import Result, line_of, read_results
from prgec.lab.study.spec import EXECUTORCH, Run, Study, StudyTask, read_study

# Four steps of q = 4 with four rows or of q = 16 with one, five of a gradient of eight.
FORWARD_ROWS = 128
SCORED_ROWS = 16


def main() -> None:
    """Measure each program once, and write its figure down before the next."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="the TOML file of the study")
    parser.add_argument("results", type=Path, help="its file of results, which is changed")
    parser.add_argument("--only", action="append", metavar="METHOD", help="measure this method (repeatable)")
    options = parser.parse_args()
    study = read_study(options.study)
    results = read_results(options.results)
    asked = [each for each in results.values() if _is_compiled(each) and each.method in (options.only or [each.method])]
    programs: dict[str, list[Result]] = {}
    for each in asked:
        programs.setdefault(_name(each), []).append(each)
    with tempfile.TemporaryDirectory() as folder:
        tasks = {task.name: _shortened(task, Path(folder)) for task in study.tasks}
        for runs in programs.values():
            memory_bytes = _measure(study, tasks[runs[0].task], runs[0])
            print(
                f"{runs[0].method}: {(runs[0].memory_bytes or 0) / 1e6:.1f} -> {memory_bytes / 1e6:.1f} MB", flush=True
            )
            results |= {each.key: dataclasses.replace(each, memory_bytes=memory_bytes) for each in runs}
            write_atomic(options.results, b"".join(map(line_of, results.values())))


def _is_compiled(result: Result) -> bool:
    return result.options.get("engine") == EXECUTORCH and result.memory_bytes is not None


def _options(result: Result) -> dict[str, Any]:
    """Those that memory follows from, and the rate."""
    return {name: value for name, value in result.options.items() if name != "data"}


def _name(result: Result) -> str:
    """The options that programs of equal memory share."""
    return json.dumps([result.task, {**_options(result), "lr": None}], sort_keys=True)


def _shortened(task: StudyTask, folder: Path) -> StudyTask:
    """The same rows to train on, and few to score."""

    def few(file: Path, split: str) -> Path:
        rows = file.read_text(encoding="utf-8").splitlines(keepends=True)
        path = folder / f"{task.name}-{split}.jsonl"
        path.write_text("".join(rows[:SCORED_ROWS]), encoding="utf-8")
        return path

    return dataclasses.replace(task, dev=few(task.dev, "dev"), test=few(task.test, "test"))


def _measure(study: Study, task: StudyTask, like: Result) -> int:
    budget = dataclasses.replace(study.budget, seconds=0.0, forward_rows=FORWARD_ROWS, eval_every=FORWARD_ROWS)
    result = train_alone(Run(like.method, task, _options(like), 0), dataclasses.replace(study, budget=budget))
    if result.memory_bytes is None or result.failure:
        raise SystemExit(f"{like.method}: nothing was measured {result.failure}")
    return result.memory_bytes


if __name__ == "__main__":
    main()
