"""The runs of a study as tasks of Ray: on this machine, or on a cluster that sees the same files.

Ray places tasks by what they ask for: threads as CPUs, and the memory of the model. Which run has to come before which
is the runner's business; results go into the file that a study in one process writes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.core.machine.extras import extra_hint
from prgec.errors import BackendError, PrgecError, UsageError
from prgec.lab.study.method import prepare
from prgec.lab.study.results import Result, append_result, read_results
from prgec.lab.study.runner import RESULTS_NAME, Report, chosen_results, num_runs, ready_runs
from prgec.lab.study.spec import Run, Study
from prgec.lab.study.train import train

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL = "ray"
_REMOTE = "ray://"
# Python with PyTorch and transformers, before there is a model.
_PROCESS_BYTES = 700_000_000
# Weights in f32 beside what they were read from, gradients and activations; a GGUF file is a quarter of bf16 or less.
_TIMES_SHARDS, _TIMES_GGUF = 4, 16
# How often a wait is left to ask whether the study is to stop.
_POLL_S = 1.0


def run_study_on_ray(
    study: Study,
    folder: Path,
    place: str,
    *,
    only: Sequence[str] = (),
    report: Report = lambda done, total, result: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """Do every run that has no result yet, as many at once as Ray has room for.

    Args:
        study: The study.
        folder: Holds `results.jsonl`; runs found there are not done again.
        place: `ray` for this machine, or a cluster's `ray://HOST:PORT`.
        only: Methods to run; all where empty.
        report: Called after each run with (runs done, all runs, the run).
        should_stop: Checked between runs; True waits for those that are under way, and ends the study early.

    Returns:
        The results of the chosen options of every method, complete or not.

    Raises:
        BackendError: If Ray is not installed, cannot be reached, or a worker died.
        PrgecError: The error that a run raised.
    """
    path = folder / RESULTS_NAME
    results = read_results(path)
    methods = [each for each in study.methods if not only or each.name in only]
    total = num_runs(study, methods)
    with _connected(place) as ray:
        task = _task(ray, study)
        there = _with_whole_paths(study)
        width = max(1, int(ray.cluster_resources().get("CPU", 1)) // max(1, study.threads))
        doing: dict[Any, str] = {}
        while True:
            waiting = [] if should_stop() else ready_runs(study, methods, results)
            for run in waiting:
                key = run.key(study)
                if len(doing) < width and key not in results and key not in doing.values():
                    doing[task.remote(_with_whole_files(run), there)] = key
            if not doing:
                break
            for done in ray.wait(list(doing), timeout=_POLL_S)[0]:
                key = doing.pop(done)
                results[key] = _answer(ray, done)
                append_result(path, results[key])
                report(
                    sum(run.key(study) in results for run in ready_runs(study, methods, results)), total, results[key]
                )
    return chosen_results(study, results)


@contextmanager
def _connected(place: str) -> Iterator[Any]:
    """Start Ray here, or reach a cluster; what was started is ended."""
    if place != LOCAL and not place.startswith(_REMOTE):
        raise UsageError(f"--on is {place!r}; expected {LOCAL} or {_REMOTE}HOST:PORT")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise BackendError("--on ray needs the package ray", hint=extra_hint("ray")) from error
    try:
        here = {"include_dashboard": False} if place == LOCAL else {"address": place}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **here)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise BackendError(f"cannot start or reach Ray: {reason}", where=place) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _task(ray: Any, study: Study) -> Any:
    """Return the function that does a run, each in a process of its own, whose memory is counted alone."""
    checkpoint = find_checkpoint(study.model)
    times = _TIMES_GGUF if checkpoint.is_gguf else _TIMES_SHARDS
    weights = sum(each.stat().st_size for each in checkpoint.shards)
    needed = _PROCESS_BYTES + times * weights + study.budget.memory_bytes
    return ray.remote(num_cpus=max(1, study.threads), memory=needed, max_calls=1, max_retries=0)(do_run)


def do_run(run: Run, study: Study) -> Result | PrgecError:
    """Do one run in a worker; what it raises is returned, since Ray would wrap it."""
    import torch

    torch.set_num_threads(max(1, study.threads))
    try:
        prepare(study.model, run.made_of, study.path)
        return train(run, study)
    except PrgecError as error:
        return error


def _answer(ray: Any, done: Any) -> Result:
    try:
        found = ray.get(done)
    except ray.exceptions.RayError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise BackendError(
            f"a worker of Ray did not finish its run: {reason}", hint="was there enough memory?"
        ) from error
    if isinstance(found, PrgecError):
        raise found
    assert isinstance(found, Result), "what do_run returns"
    return found


def _with_whole_paths(study: Study) -> Study:
    """Return a study that can be read from any folder."""
    model = str(Path(study.model).resolve()) if Path(study.model).exists() else study.model
    return replace(study, path=study.path.resolve(), model=model)


def _with_whole_files(run: Run) -> Run:
    task = run.task
    named = {split: getattr(task, split).resolve() for split in ("train", "dev", "test")}
    name = str(Path(task.task).resolve()) if Path(task.task).is_file() else task.task
    return replace(run, task=replace(task, **named, task=name))
