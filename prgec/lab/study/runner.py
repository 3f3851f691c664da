"""Runs a study: tunes each method on a few seeds, then trains all seeds with what dev chose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from prgec.lab.study.isolated import Train, train_alone
from prgec.lab.study.results import Result, append_result, mean_of_choice, read_results
from prgec.lab.study.spec import Options, Run, Study, StudyMethod, StudyTask

RESULTS_NAME = "results.jsonl"
Report = Callable[[int, int, Result], None]
Begin = Callable[[int, int, Run], None]


def run_study(
    study: Study,
    folder: Path,
    *,
    only: Sequence[str] = (),
    begin: Begin = lambda number, total, run: None,
    report: Report = lambda done, total, result: None,
    should_stop: Callable[[], bool] = lambda: False,
    train: Train = train_alone,
) -> list[Result]:
    """Do every run that has no result yet.

    Args:
        study: The study.
        folder: Holds `results.jsonl`; runs found there are not done again.
        only: Methods to run; all where empty.
        begin: Called before each run that has no result yet with (its number, all runs, the run).
        report: Called after each run with (runs done, all runs, the run).
        should_stop: Checked between runs; True ends the study early.
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
    total = num_runs(study, methods)
    done = 0
    for run in _runs(study, methods, results):
        if should_stop():
            break
        key = run.key(study)
        if key not in results:
            begin(done + 1, total, run)
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
    """Return the options with the best mean score on dev over the tuning seeds, of those that memory is enough for.

    None while runs are missing, and where it is enough for none.
    """
    if not _is_tuned(study, method):
        return method.grid[0]
    scores = {}
    for number, options in enumerate(method.grid):
        runs = tuning_results(study, method, task, options, results)
        if runs is None:
            return None
        if study.budget.holds([each.memory_bytes for each in runs]):
            scores[number] = mean_of_choice(runs)
    return method.grid[max(scores, key=lambda number: scores[number])] if scores else None


def tuning_results(
    study: Study, method: StudyMethod, task: StudyTask, options: Options, results: dict[str, Result]
) -> list[Result] | None:
    """Return the runs of the seeds that choose, for one try; None while one is missing."""
    keys = [Run(method.name, task, options, seed).key(study) for seed in study.seeds[: study.tune_seeds]]
    return [results[key] for key in keys] if results.keys() >= set(keys) else None


def _is_tuned(study: Study, method: StudyMethod) -> bool:
    """Whether the first seeds have something to choose: among options, or whether memory is enough at all."""
    return len(method.grid) > 1 or study.budget.memory_bytes > 0


def num_runs(study: Study, methods: Iterable[StudyMethod]) -> int:
    """How many runs some methods are, tuning and all tasks included."""
    return sum(_num_runs(study, each) for each in methods) * len(study.tasks)


def ready_runs(study: Study, methods: Iterable[StudyMethod], results: dict[str, Result]) -> list[Run]:
    """Return every run that nothing has to come before, done or not."""
    return list(_runs(study, methods, results))


def _num_runs(study: Study, method: StudyMethod) -> int:
    if not _is_tuned(study, method):
        return len(study.seeds)
    tuning = min(study.tune_seeds, len(study.seeds))
    return len(method.grid) * tuning + len(study.seeds) - tuning


def _runs(study: Study, methods: Iterable[StudyMethod], results: dict[str, Result]) -> Iterator[Run]:
    """Yield tuning runs first, then the others; what dev chose is looked up when it is needed."""
    methods = list(methods)
    for task in study.tasks:
        for method in methods:
            seeds = study.seeds[: study.tune_seeds] if _is_tuned(study, method) else ()
            yield from (Run(method.name, task, options, seed) for options in method.grid for seed in seeds)
            best = chosen_options(study, method, task, results)
            if best is not None:  # else memory is enough for none of them: the tuning runs are done
                yield from (Run(method.name, task, best, seed) for seed in study.seeds[len(seeds) :])
