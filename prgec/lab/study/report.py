"""A study as Markdown: scores, seed-by-seed comparisons, the price of an accuracy, memory and time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, geometric_mean, pstdev

from prgec.lab.study.cost import markdown, memory_table, searched, time_table
from prgec.lab.study.results import Point, Result, of_method
from prgec.lab.study.spec import Study, StudyTask

# Scores are counts over a few hundred examples: smaller differences are rounding.
TIE = 1e-9
_MEGABYTE = 1e6
# Tasks that both methods end up solving still show which one is faster: by the mean over the scores on dev on the way.
_MEASURES: dict[str, Callable[[Result], float]] = {
    "test, end": lambda result: result.test_accuracy,
    "dev, mean of the curve": lambda result: fmean(point.accuracy for point in result.curve[1:]),
}


def report(study: Study, results: Sequence[Result], command: str, tried: Mapping[str, Result] | None = None) -> str:
    """Return the whole report.

    Args:
        study: The study.
        results: Runs of the chosen options, from `chosen_results`.
        command: Command that repeats the study.
        tried: All runs by key, for what memory admits.
    """
    done, all_methods = {each.method for each in results}, study
    study = replace(
        study,
        methods=tuple(each for each in study.methods if each.name in done),
        compare=tuple(pair for pair in study.compare if done.issuperset(pair)),
    )
    parts = [
        f"# {study.title}",
        f"{study.budget.text}; seeds {', '.join(map(str, study.seeds))}; options chosen on dev with the first "
        f"{study.tune_seeds} of them, test reported. A cell: mean ± standard deviation over seeds (min to max), in "
        "percent.",
        f"Made with `{command}`.",
        accuracy_table(study, results),
    ]
    if study.budget.seconds:
        note = "Mean accuracy on dev after so many seconds of training steps: the last score until then."
        parts += ["## Accuracy against time", f"{note}\n\n{time_table(study, results)}"]
    if study.budget.memory_bytes and tried:
        parts += ["## What memory admits", memory_table(all_methods, tried)]
    if study.compare:
        parts += ["## Seed by seed", comparison_table(study, results)]
    if any(task.target for task in study.tasks):
        parts += ["## The price of an accuracy on dev", price_table(study, results)]
        if study.compare:
            parts += [speed_table(study, results)]
    parts += ["## Chosen options, time and memory", options_table(study, results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def accuracy_table(study: Study, results: Sequence[Result]) -> str:
    """Return test accuracy by method and task, and zero-shot accuracy on dev."""
    tasks = [task.name for task in study.tasks]
    rows = [["zero-shot (dev)", *(_zero_shot(results, task) for task in tasks), ""]]
    for method in study.methods:
        cells = [_cell([each.test_accuracy for each in of_method(results, method.name, task)]) for task in tasks]
        means = [
            fmean(each.test_accuracy for each in of_method(results, method.name, task))
            for task in tasks
            if of_method(results, method.name, task)
        ]
        rows.append([method.name, *cells, f"{100 * fmean(means):.1f}" if len(means) == len(tasks) else "-"])
    return markdown(["method", *tasks, "mean of tasks"], rows)


def comparison_table(study: Study, results: Sequence[Result]) -> str:
    """Return wins, ties and losses of each pair over equal seeds: at the end on test, and on the way on dev."""
    rows = [_comparison(study, results, pair, what) for pair in study.compare for what in _MEASURES]
    return markdown(["pair", "by", *(task.name for task in study.tasks), "all", "mean gain, points"], rows)


def _comparison(study: Study, results: Sequence[Result], pair: tuple[str, str], what: str) -> list[str]:
    first, second = pair
    counts, gains, cells = [0, 0, 0], [], []
    for task in study.tasks:
        runs = [of_method(results, name, task.name) for name in (first, second)]
        pairs = _pairs(runs[0], runs[1], _MEASURES[what])
        wins, ties = sum(a > b + TIE for a, b in pairs), sum(abs(a - b) <= TIE for a, b in pairs)
        counts = [total + new for total, new in zip(counts, (wins, ties, len(pairs) - wins - ties), strict=True)]
        gains += [a - b for a, b in pairs]
        mean = f" ({100 * fmean(a - b for a, b in pairs):+.1f})" if pairs else ""
        cells.append(f"{wins} of {len(pairs)}{mean}")
    total = f"{counts[0]} won, {counts[1]} tied, {counts[2]} lost"
    return [f"{first} against {second}", what, *cells, total, f"{100 * fmean(gains):+.1f}" if gains else "-"]


def price_table(study: Study, results: Sequence[Result]) -> str:
    """Return rows of forward passes, wall-clock and CPU seconds until dev first reached the target of each task."""
    tasks = _with_target(study)
    rows = []
    for method in study.methods:
        cells = []
        for task in tasks:
            runs = of_method(results, method.name, task.name)
            reached = [point for point in (first_at(each.curve, task.target) for each in runs) if point is not None]
            cells.append(_price(reached, len(runs)))
        rows.append([method.name, *cells])
    note = (
        "Mean over the seeds that got there: thousands of forward rows, wall-clock s, CPU s; in brackets how many "
        "did. Dev is scored at intervals, so a price is an upper bound."
    )
    return f"{note}\n\n{markdown(['method', *_target_heads(study)], rows)}"


def speed_table(study: Study, results: Sequence[Result]) -> str:
    """Return, for each pair, the share of the second method's forward rows that the first needs for the target."""
    rows = []
    for pair in study.compare:
        cells, shares = [], []
        for task in _with_target(study):
            first, second = (of_method(results, name, task.name) for name in pair)
            pairs = _pairs(first, second, functools.partial(_rows_to, target=task.target))
            if not pairs:
                cells.append("-")
                continue
            mine, other = (fmean(column) for column in zip(*pairs, strict=True))
            shares.append(mine / other)
            cells.append(f"{shares[-1]:.2f} ({mine / 1000:.1f}k / {other / 1000:.1f}k)")
        rows.append([f"{pair[0]} / {pair[1]}", *cells, f"{geometric_mean(shares):.2f}" if shares else "-"])
    note = (
        "One method's forward rows as a share of another's, over equal seeds; a run that never got there counts "
        "with all the rows it spent."
    )
    return f"{note}\n\n{markdown(['pair', *_target_heads(study), 'geometric mean'], rows)}"


def options_table(study: Study, results: Sequence[Result]) -> str:
    """Return what dev chose and what a run cost, by method."""
    rows = []
    for method in study.methods:
        runs = [each for each in results if each.method == method.name]
        if not runs:
            continue
        names = searched(method)
        chosen = []
        for task in study.tasks:
            of_task = of_method(results, method.name, task.name)
            values = (
                [
                    f"{of_task[0].options[name]:g}"
                    if isinstance(of_task[0].options[name], float)
                    else str(of_task[0].options[name])
                    for name in names
                ]
                if of_task
                else []
            )
            chosen.append(" / ".join(values) or "-")
        failures = sum(bool(each.failure) for each in runs)
        rows.append(
            [
                method.name,
                *chosen,
                f"{fmean(each.steps for each in runs):.0f}",
                f"{fmean(each.curve[-1].cpu_s for each in runs):.1f}",
                f"{fmean(each.curve[-1].wall_s for each in runs):.1f}",
                _megabytes([each.memory_bytes for each in runs if each.memory_bytes is not None]),
                str(failures),
            ]
        )
    any_names = sorted({name for method in study.methods for name in searched(method)})
    head = ["method", *(f"{task.name}: {' / '.join(any_names) or 'no search'}" for task in study.tasks)]
    return markdown([*head, "steps", "CPU s a run", "wall s a run", "most MB a step adds", "diverged"], rows)


def _megabytes(sizes: Sequence[int]) -> str:
    return f"{max(sizes) / _MEGABYTE:.0f}" if sizes else "-"


def first_at(curve: Iterable[Point], target: float) -> Point | None:
    """Return the first point that scores at least `target`."""
    return next((point for point in curve if point.accuracy >= target), None)


def _with_target(study: Study) -> list[StudyTask]:
    return [task for task in study.tasks if task.target]


def _target_heads(study: Study) -> list[str]:
    return [f"{task.name}, {task.target:.0%}" for task in _with_target(study)]


def _rows_to(run: Result, target: float) -> float:
    found = first_at(run.curve, target)
    return float(found.forward_rows if found else run.curve[-1].forward_rows)


def _zero_shot(results: Sequence[Result], task: str) -> str:
    scores = [each.curve[0].accuracy for each in results if each.task == task]
    return f"{100 * fmean(scores):.1f}" if scores else "-"


def _cell(scores: Sequence[float]) -> str:
    if not scores:
        return "-"
    low, high = 100 * min(scores), 100 * max(scores)
    return f"{100 * fmean(scores):.1f} ± {100 * pstdev(scores):.1f} ({low:.1f} to {high:.1f})"


def _pairs(
    first: Sequence[Result], second: Sequence[Result], measure: Callable[[Result], float]
) -> list[tuple[float, float]]:
    other = {each.seed: measure(each) for each in second}
    return [(measure(each), other[each.seed]) for each in first if each.seed in other]


def _price(reached: Sequence[Point], num_runs: int) -> str:
    if not num_runs:
        return "-"
    if not reached:
        return f"never (0 of {num_runs})"
    rows, wall, cpu = (
        fmean(values) for values in zip(*((p.forward_rows, p.wall_s, p.cpu_s) for p in reached), strict=True)
    )
    return f"{rows / 1000:.1f}k, {wall:.1f} s, {cpu:.1f} s ({len(reached)} of {num_runs})"
