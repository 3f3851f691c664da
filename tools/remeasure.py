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

from prgec.machine.files import write_atomic
from prgec.study.alone import train_alone
from prgec.study.spec import EXECUTORCH, Run, Study, StudyTask, read_study

# Four steps of q = 4 with four rows or of q = 16 with one, five of a gradient of eight.
FORWARD_ROWS = 128
SCORED_ROWS = 16
# Nothing of memory follows from these.
FREE = ("lr", "data")


def main() -> None:
    """Measure each program once, and write its figure down before the next."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="the TOML file of the study")
    parser.add_argument("results", type=Path, help="its file of results, which is changed")
    parser.add_argument("--only", action="append", metavar="METHOD", help="measure this method (repeatable)")
    options = parser.parse_args()
    study = read_study(options.study)
    lines = [json.loads(line) for line in options.results.read_text(encoding="utf-8").splitlines()]
    asked = [line for line in lines if _is_compiled(line) and (not options.only or line["method"] in options.only)]
    found: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        tasks = {task.name: _shortened(task, Path(folder)) for task in study.tasks}
        for line in asked:
            name = _name(line)
            if name not in found:
                found[name] = _measure(study, tasks[line["task"]], line)
                print(f"{line['method']}: {line['memory_bytes'] / 1e6:.1f} -> {found[name] / 1e6:.1f} MB", flush=True)
            line["memory_bytes"] = found[name]
            write_atomic(options.results, "".join(json.dumps(each) + "\n" for each in lines).encode())


def _is_compiled(line: dict[str, Any]) -> bool:
    return line["options"].get("engine") == EXECUTORCH and line["memory_bytes"] is not None


def _name(line: dict[str, Any]) -> str:
    """What programs of equal memory have in common."""
    options = {name: value for name, value in line["options"].items() if name not in FREE}
    return json.dumps([line["task"], options], sort_keys=True)


def _shortened(task: StudyTask, folder: Path) -> StudyTask:
    """The same rows to train on, and few to score."""

    def few(file: Path, split: str) -> Path:
        rows = file.read_text(encoding="utf-8").splitlines(keepends=True)
        path = folder / f"{task.name}-{split}.jsonl"
        path.write_text("".join(rows[:SCORED_ROWS]), encoding="utf-8")
        return path

    return dataclasses.replace(task, dev=few(task.dev, "dev"), test=few(task.test, "test"))


def _measure(study: Study, task: StudyTask, line: dict[str, Any]) -> int:
    budget = dataclasses.replace(study.budget, seconds=0.0, forward_rows=FORWARD_ROWS, eval_every=FORWARD_ROWS)
    options = {name: value for name, value in line["options"].items() if name != "data"}
    result = train_alone(Run(line["method"], task, options, 0), dataclasses.replace(study, budget=budget))
    if result.memory_bytes is None or result.failure:
        raise SystemExit(f"{line['method']}: nothing was measured {result.failure}")
    return result.memory_bytes


if __name__ == "__main__":
    main()
