"""One run of a study in a process of its own: its memory is counted alone, and all of it is given back.

The process is forked, so that libraries are imported once and runs of equal options share one export.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeAlias

import torch

from prgec.errors import BackendError, PrgecError
from prgec.study.method import prepare
from prgec.study.results import Result
from prgec.study.spec import Run, Study
from prgec.study.train import train

Train: TypeAlias = Callable[[Run, Study], Result]


def train_alone(run: Run, study: Study) -> Result:
    """Do one run in a process of its own.

    Raises:
        PrgecError: What the run raised.
        BackendError: If its process died.
    """
    threads = study.threads or torch.get_num_threads()
    # Threads of OpenMP do not survive a fork, so that none must be made before.
    torch.set_num_threads(1)
    try:
        prepare(study.model, run.options, study.path)
        return _in_child(run, study, threads)
    finally:
        torch.set_num_threads(threads)


def _in_child(run: Run, study: Study, threads: int) -> Result:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(run, study, threads, sender), daemon=True)
    child.start()
    sender.close()
    answer: Result | PrgecError | None = None
    try:
        answer = receiver.recv()
    except EOFError:
        pass
    except BaseException:
        child.terminate()
        raise
    finally:
        child.join()
    if isinstance(answer, PrgecError):
        raise answer
    if answer is None:
        raise BackendError(
            f"the process of {run.method} on {run.task.name}, seed {run.seed}, ended with code {child.exitcode}",
            hint="was there enough memory?" if child.exitcode == -signal.SIGKILL else None,
        )
    return answer


def _child(run: Run, study: Study, threads: int, sender: Connection) -> None:
    # Ctrl-C is for the study, which stops after this run, or ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(threads)
    try:
        sender.send(train(run, study))
    except PrgecError as error:
        sender.send(error)
