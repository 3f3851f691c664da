"""The state that all pages share: runs, started commands, programs and the process that answers for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

from prgec.serve.ui.follow import Metrics
from prgec.serve.ui.inference import Inference
from prgec.serve.ui.jobs import FOLDER, Jobs, StartedCommand
from prgec.serve.ui.programs import KnownProgram, known
from prgec.serve.ui.run_list import ListedRun, RunList
from prgec.serve.web.refusal import HttpError

# Runs whose numbers stay in memory, about 3 MB each for 100,000 steps.
_MOST_FOLLOWED = 16


class State:
    """The page's state.

    Args:
        root: Folder of the runs.
        program: A program to offer besides those found there.
    """

    def __init__(self, root: Path, program: Path | None) -> None:
        self.run_list = RunList(root)
        self.jobs = Jobs(root)
        self.inference = Inference()
        self._named = () if program is None else (program,)
        self._followed: OrderedDict[Path, Metrics] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def root(self) -> Path:
        """Folder of the runs."""
        return self.run_list.root

    def feedback_of(self, program: KnownProgram) -> Path:
        """Return the file of a program's judged answers, which may not be there yet."""
        return self.root.absolute() / FOLDER / f"feedback-{program.id}.jsonl"

    def run(self, name: str) -> ListedRun:
        """Return the run of an id.

        Raises:
            HttpError: If there is none.
        """
        found = self.run_list.find(name) or self._expected(name)
        if found is None:
            raise HttpError(404, "there is no such run")
        job = self.job_of(found)
        # One that goes on opens its program before it takes the folder.
        is_beginning = found.process is None and job is not None and job.is_working
        return replace(found, process=job.process) if job is not None and is_beginning else found

    def _expected(self, name: str) -> ListedRun | None:
        """Return a run that was started and has written nothing yet, or never will."""
        for job in self.jobs.all():
            folder = Path(job.target)
            if job.kind == "run" and self.run_list.id_of(folder) == name:
                return ListedRun(
                    id=name, name=folder.name, folder=folder, summary={}, process=None, remark="", changed=job.started
                )
        return None

    def job_of(self, run: ListedRun) -> StartedCommand | None:
        """Return what was started last to write a run."""
        return self.jobs.of(run.folder)

    def programs(self) -> list[KnownProgram]:
        """Return all programs."""
        return known(self.run_list, self._named)

    def program(self, name: str) -> KnownProgram:
        """Return the program of an id.

        Raises:
            HttpError: If there is none.
        """
        found = next((program for program in self.programs() if program.id == name), None)
        if found is None:
            raise HttpError(404, "there is no such program")
        return found

    def metrics(self, run: ListedRun) -> Metrics:
        """Return what a run measured so far."""
        with self._lock:
            metrics = self._followed.setdefault(run.folder, Metrics(run.folder))
            self._followed.move_to_end(run.folder)
            while len(self._followed) > _MOST_FOLLOWED:
                self._followed.popitem(last=False)
            metrics.refresh()
            return metrics
