"""The final score of each method of a study: its best options, over their runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import Any

from prgec.lab.study.results import Result, mean_of_choice
from prgec.lab.study.spec import EXECUTORCH, TORCH, Study

_MEGABYTE = 1e6
_ENGINES = {TORCH: "PyTorch", EXECUTORCH: "ExecuTorch"}
# Kinds of methods that are PyTorch's own.
_BASELINES = frozenset({"fo", "mezo", "conmezo"})


@dataclass(frozen=True)
class Score:
    """A method of a study, with its best options.

    Attributes:
        method: Its name.
        options: Options that were varied, as text.
        engine: Engine that ran it.
        is_baseline: Whether it is what PyTorch does, and none of prgec's.
        before: Mean accuracy on dev before the first step.
        by_task: Mean accuracy on test by task.
        spread: Its standard deviation over seeds, of tasks with several.
        memory_mb: Median of the most that runs held while they trained, without runs that another confirms; None where
            it was not measured.
        cpu_s: Mean time of a run's steps, of the same runs.
        runs: How many there are.
        commits: Commit of the code of each run but those confirmed; empty for those before commits were kept.
        confirmed: How many stand because the first seed of their task was done again by a later commit, and had the
            same accuracy as before.
    """

    method: str
    options: str
    engine: str
    is_baseline: bool
    before: float
    by_task: Mapping[str, float]
    spread: Mapping[str, float]
    memory_mb: float | None
    cpu_s: float
    runs: int
    commits: tuple[str, ...]
    confirmed: int

    @property
    def accuracy(self) -> float:
        """Mean over tasks."""
        return fmean(self.by_task.values())


def scores_of(study: Study, results: Sequence[Result]) -> list[Score]:
    """Return the best options of every method, best method first."""
    scores = []
    for method, best in best_runs(study, results).items():
        tries = [each.options for each in results if each.method == method]
        scores.append(_score(method, best, _differing(tries, best[0].options)))
    return sorted(scores, key=lambda score: (-len(score.by_task), -score.accuracy))


def best_runs(study: Study, results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the runs of the best options of every method, by its name; a method that no task admits has none."""
    groups: dict[str, dict[str, dict[str, list[Result]]]] = {}
    for each in results:
        tries = groups.setdefault(each.method, {})
        tries.setdefault(json.dumps(each.options, sort_keys=True), {}).setdefault(each.task, []).append(each)
    found = {}
    for method, tries in groups.items():
        admitted = {key: _admitted(study, by_task) for key, by_task in tries.items()}
        most = max(len({run.task for run in runs}) for runs in admitted.values())
        if not most:
            continue
        whole = {key: runs for key, runs in admitted.items() if len({run.task for run in runs}) == most}
        found[method] = whole[_chosen(whole)]
    return found


def _chosen(tries: Mapping[str, Sequence[Result]]) -> str:
    """Return the options that a study goes on with: the best on dev, over the seeds that tried all of them."""
    seeds = set.intersection(*({run.seed for run in runs} for runs in tries.values()))

    def tuned(options: str) -> list[Result]:
        return [run for run in tries[options] if not seeds or run.seed in seeds]

    return max(tries, key=lambda options: mean_of_choice(tuned(options)))


def _admitted(study: Study, by_task: Mapping[str, Sequence[Result]]) -> list[Result]:
    """Runs on the tasks for which memory is enough."""
    return [
        run for runs in by_task.values() if study.budget.holds([each.memory_bytes for each in runs]) for run in runs
    ]


def _score(method: str, runs: Sequence[Result], options: str) -> Score:
    by_task: dict[str, list[float]] = {}
    for run in runs:
        by_task.setdefault(run.task, []).append(run.test_accuracy)
    first = {run.task: run.commit for run in sorted(runs, key=lambda run: -run.seed)}
    recent = [run for run in runs if first[run.task] in ("", run.commit)]
    measured = [run.memory_bytes / _MEGABYTE for run in recent if run.memory_bytes is not None]
    return Score(
        method,
        options,
        _ENGINES[runs[0].options.get("engine", TORCH)],
        runs[0].options["kind"] in _BASELINES,
        fmean(run.curve[0].accuracy for run in runs),
        {task: fmean(values) for task, values in by_task.items()},
        {task: pstdev(values) for task, values in by_task.items() if len(values) > 1},
        median(measured) if measured else None,
        fmean(run.curve[-1].cpu_s for run in recent),
        len(runs),
        tuple(run.commit for run in recent),
        len(runs) - len(recent),
    )


def _differing(tries: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> str:
    names = [name for name in best if len({str(each.get(name)) for each in tries}) > 1]
    values = (f"{best[name]:g}" if isinstance(best[name], float) else str(best[name]) for name in names)
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
