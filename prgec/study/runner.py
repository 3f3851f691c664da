"""Runs a study: tunes each method on a few seeds, then trains all seeds with what dev chose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from prgec.study.alone import Train, train_alone
from prgec.study.results import Result, append_result, read_results
from prgec.study.spec import Options, Run, Study, StudyMethod, StudyTask

RESULTS_NAME = "results.jsonl"
Report = Callable[[int, int, Result], None]


def run_study(
    study: Study,
    folder: Path,
    *,
    only: Sequence[str] = (),
    report: Report = lambda done, total, result: None,
    should_stop: Callable[[], bool] = lambda: False,
    train: Train = train_alone,
) -> list[Result]:
    """Do every run that has no result yet.

    Args:
        study: What to do.
        folder: Holds `results.jsonl`; runs found there are not done again.
        only: Methods to run; all where empty.
        report: Called after each run with (runs done, all runs, the run).
        should_stop: Asked between runs; True ends the study early.
        train: Does one run; by default in a process of its own.

    Returns:
        The results of the chosen options of every method, complete or not.

    Raises:
        DataError: If a file cannot be read.
        UsageError: If a method cannot be made of its options.
    """
    path = folder / RESULTS_NAME
    results = read_results(path)
    methods = [each for each in study.methods if not only or each.name in only]
    total = sum(_num_runs(study, each) for each in methods) * len(study.tasks)
    done = 0
    for run in _runs(study, methods, results):
        if should_stop():
            break
        key = run.key(study)
        if key not in results:
            results[key] = train(run, study)
            append_result(path, results[key])
        done += 1
        report(done, total, results[key])
    return chosen_results(study, results)


def chosen_results(study: Study, results: dict[str, Result]) -> list[Result]:
    """Return the runs a report is made of: all seeds of the options that dev chose, where tuning is complete."""
    found = []
    for method in study.methods:
        for task in study.tasks:
            options = chosen_options(study, method, task, results)
            if options is None:
                continue
            keys = (Run(method.name, task, options, seed).key(study) for seed in study.seeds)
            # A run of equal options may have been done under another name.
            found += [replace(results[key], method=method.name, task=task.name) for key in keys if key in results]
    return found


def chosen_options(study: Study, method: StudyMethod, task: StudyTask, results: dict[str, Result]) -> Options | None:
    """Return the options with the best mean score on dev over the tuning seeds; None while runs are missing."""
    if len(method.grid) == 1:
        return method.grid[0]
    scores = []
    for options in method.grid:
        keys = [Run(method.name, task, options, seed).key(study) for seed in study.seeds[: study.tune_seeds]]
        if any(key not in results for key in keys):
            return None
        pairs = [results[key].best_of_choice for key in keys]
        scores.append(tuple(sum(values) / len(values) for values in zip(*pairs, strict=True)))
    return method.grid[scores.index(max(scores))]


def _num_runs(study: Study, method: StudyMethod) -> int:
    if len(method.grid) == 1:
        return len(study.seeds)
    tuning = min(study.tune_seeds, len(study.seeds))
    return len(method.grid) * tuning + len(study.seeds) - tuning


def _runs(study: Study, methods: Iterable[StudyMethod], results: dict[str, Result]) -> Iterator[Run]:
    """Yield tuning runs first, then the others; what dev chose is looked up when it is needed."""
    methods = list(methods)
    for task in study.tasks:
        for method in methods:
            seeds = study.seeds[: study.tune_seeds] if len(method.grid) > 1 else ()
            yield from (Run(method.name, task, options, seed) for options in method.grid for seed in seeds)
            best = chosen_options(study, method, task, results)
            assert best is not None, "its tuning runs come first"
            yield from (Run(method.name, task, best, seed) for seed in study.seeds[len(seeds) :])
