"""One run of a study in a process of its own: its memory is counted alone, and all of it is given back.

The process is forked, so that libraries are imported once and runs of equal options share one export.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import TypeAlias

import torch

from prgec.core.machine.apart import call_apart
from prgec.lab.study.method import prepare
from prgec.lab.study.results import Result
from prgec.lab.study.spec import Run, Study
from prgec.lab.study.train import train

Train: TypeAlias = Callable[[Run, Study], Result]


def train_alone(run: Run, study: Study) -> Result:
    """Do one run in a process of its own.

    Raises:
        PrgecError: The error that the run raised.
        BackendError: If its process died.
    """
    threads = study.threads or torch.get_num_threads()
    # Threads of OpenMP do not survive a fork, so that none must be made before.
    torch.set_num_threads(1)
    try:
        prepare(study.model, run.made_of, study.path)
        what = f"{run.method} on {run.task.name}, seed {run.seed},"
        result: Result = call_apart(multiprocessing.get_context("fork"), what, _train, run, study, threads)
        return result
    finally:
        torch.set_num_threads(threads)


def _train(run: Run, study: Study, threads: int) -> Result:
    torch.set_num_threads(threads)
    return train(run, study)
