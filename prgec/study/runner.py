"""Runs a study: tunes each method on a few seeds, then trains all seeds with what dev chose."""

from __future__ import annotations

import logging
import math
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prgec.data.dataset import load_dataset
from prgec.data.encode import Row, encode_items
from prgec.data.eval_set import EvalSet, encode_row_set
from prgec.errors import DataError, NumericsError
from prgec.study.method import Method, build_method
from prgec.study.results import Point, Result, append_result, read_results
from prgec.study.spec import Options, Run, Study, StudyMethod, StudyTask
from prgec.training.evaluate import Evaluation, evaluate
from prgec.training.loop import TrainingLoop
from prgec.training.schedules import DEFAULT_SCHEDULE, Rates

logger = logging.getLogger(__name__)

RESULTS_NAME = "results.jsonl"
Report = Callable[[int, int, Result], None]


def run_study(
    study: Study,
    folder: Path,
    *,
    only: Sequence[str] = (),
    report: Report = lambda done, total, result: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """Do every run that has no result yet.

    Args:
        study: What to do.
        folder: Holds `results.jsonl`; runs found there are not done again.
        only: Methods to run; all where empty.
        report: Called after each run with (runs done, all runs, the run).
        should_stop: Asked between runs; True ends the study early.

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


def train(run: Run, study: Study) -> Result:
    """Do one run.

    Raises:
        DataError: If a file cannot be read or holds no choices to score.
        UsageError: If the method cannot be made of its options.
    """
    method = build_method(study.model, run.options, run.seed, study.path)
    data = _Data.load(run.task, method)
    course = _Course(method, data, run, study)
    failure = ""
    try:
        course.go()
    except NumericsError as error:
        failure = error.what
    test = course.score(data.test)
    return Result(
        key=run.key(study),
        method=run.method,
        task=run.task.name,
        options=dict(run.options),
        seed=run.seed,
        steps=course.steps_done,
        curve=tuple(course.curve),
        test_accuracy=test.accuracy or 0.0,
        test_loss=test.loss,
        peak_bytes=course.peak_bytes,
        failure=failure,
    )


@dataclass(frozen=True)
class _Data:
    """A task encoded for one method."""

    train: list[Row]
    dev: EvalSet
    test: EvalSet

    @classmethod
    def load(cls, task: StudyTask, method: Method) -> _Data:
        program = method.program
        sets = {split: load_dataset(getattr(task, split), task.task) for split in ("train", "dev", "test")}
        rows = encode_items(sets["train"].examples, program.tokenizer, program.manifest)
        dev, test = (encode_row_set(sets[split], program.tokenizer, program.manifest) for split in ("dev", "test"))
        for split, rows_of in (("dev", dev), ("test", test)):
            if not rows_of.examples or max(map(len, rows_of.choices), default=0) < 2:
                raise DataError(
                    "a study scores choices, and there are none",
                    where=getattr(task, split),
                    hint="name the task of the data with task = ...",
                )
        return cls(rows, dev, test)


class _Course:
    """One run on its way."""

    def __init__(self, method: Method, data: _Data, run: Run, study: Study) -> None:
        self.method, self.data = method, data
        schedule = str(run.options.get("schedule", DEFAULT_SCHEDULE))
        num_steps = max(1, study.forward_rows // method.rows_per_step)
        rates = Rates(num_steps, float(run.options["lr"]), schedule)
        self.loop = TrainingLoop(method, data.train, method.program.manifest, run.seed, rates)
        self.steps_per_eval = max(1, study.eval_every // method.rows_per_step)
        self.curve: list[Point] = []
        self.steps_done = 0
        self.peak_bytes = 0

    def go(self) -> None:
        """Train to the end of the budget, scoring dev on the way.

        Raises:
            NumericsError: If training diverges; the curve then ends with what was reached.
        """
        start_bytes = _peak_bytes()
        self._note()
        for result in self.loop:
            self.steps_done = result.step
            if result.step % self.steps_per_eval == 0 or result.step == self.loop.rates.steps:
                self.peak_bytes = max(self.peak_bytes, _peak_bytes() - start_bytes)
                self._note()

    def score(self, rows: EvalSet) -> Evaluation:
        """Score the present weights; weights that give no number answer nothing right."""
        try:
            found = evaluate(self.method.program, rows)
        except NumericsError:
            return Evaluation(math.log(self.method.program.manifest.vocab_size), 0.0, len(rows.answers), 0, 0.0)
        assert found is not None, "nothing stops it"
        return found

    def _note(self) -> None:
        self.method.flush()
        found = self.score(self.data.dev)
        rows = self.steps_done * self.method.rows_per_step
        wall, cpu = round(self.loop.wall_seconds, 4), round(self.loop.cpu_seconds, 4)
        self.curve.append(Point(rows, found.accuracy or 0.0, found.loss, wall, cpu))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
