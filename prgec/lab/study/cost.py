"""Tables of a study whose budget is seconds or memory: what a method reached when, and which tries memory admits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from prgec.lab.study.results import Result, of_method
from prgec.lab.study.runner import tuning_results
from prgec.lab.study.spec import Options, Study, StudyMethod

_SHARES = (0.1, 0.25, 0.5, 1.0)
_MEGABYTE = 1e6


def time_table(study: Study, results: Sequence[Result]) -> str:
    """Return the mean accuracy on dev of every method after shares of the seconds: the last score until then."""
    moments = [share * study.budget.seconds for share in _SHARES]
    rows = []
    for method in study.methods:
        for task in study.tasks:
            runs = of_method(results, method.name, task.name)
            if runs:
                scores = [fmean(_score_at(study, each, moment) for each in runs) for moment in moments]
                rows.append([method.name, task.name, *(f"{100 * score:.1f}" for score in scores)])
    return markdown(["method", "task", *(f"{moment:g} s" for moment in moments)], rows)


def memory_table(study: Study, tried: Mapping[str, Result]) -> str:
    """Return what every try adds to the model, and whether the budget admits it."""
    rows = []
    for method in study.methods:
        for options in method.grid:
            runs = [tuning_results(study, method, task, options, dict(tried)) for task in study.tasks]
            of_tasks = [[each.memory_bytes for each in found] for found in runs if found]
            if of_tasks:
                admitted = sum(map(study.budget.holds, of_tasks))
                sizes = [each for found in of_tasks for each in found if each is not None]
                cells = [method.name, searched_text(method, options), _spread(sizes), str(len(sizes))]
                rows.append([*cells, f"{admitted} of {len(of_tasks)}"])
    return markdown(["method", "options", "MB steps add, median (range)", "measured", "tasks it fits"], rows)


def _spread(sizes: Sequence[int]) -> str:
    if not sizes:
        return "-"
    low, middle, high = (each / _MEGABYTE for each in (min(sizes), median(sizes), max(sizes)))
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def searched(method: StudyMethod) -> list[str]:
    """Names of the options a method's tries differ in."""
    return [name for name in method.grid[0] if len({str(options[name]) for options in method.grid}) > 1]


def searched_text(method: StudyMethod, options: Options) -> str:
    """The name that distinguishes one try of a method from the others."""
    return ", ".join(f"{name} {options[name]}" for name in searched(method)) or "-"


def markdown(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """A table of cells that are texts."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _score_at(study: Study, run: Result, moment: float) -> float:
    # The last score comes with the step that spends the rest of the budget.
    spent = [point.wall_s if study.budget.clock == "wall" else point.cpu_s for point in run.curve]
    done = [point for point, at in zip(run.curve[:-1], spent, strict=False) if at <= moment]
    return run.curve[-1].accuracy if moment >= spent[-1] else done[-1].accuracy
