"""Pages about runs: the list, one run as it goes, and several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.responses import Response

from prgec.core.config.toml_file import read_options
from prgec.core.formats.run_folder import CONFIG_NAME
from prgec.errors import PrgecError
from prgec.runtime.report import compare
from prgec.runtime.report import page as report
from prgec.runtime.report.chart import draw
from prgec.runtime.report.record import RunRecord, read_run
from prgec.runtime.runs.options import RUN_TABLE
from prgec.serve.ui import jobs
from prgec.serve.ui.curves import figures
from prgec.serve.ui.page_request import PageRequest, fragment, go
from prgec.serve.ui.run_list import ListedRun
from prgec.serve.ui.state import State
from prgec.serve.ui.view import page
from prgec.serve.web.refusal import HttpError

# The most overlapping lines that a reader can distinguish.
MOST_COMPARED = 24
_TAIL_LINES = 12
_STEPS = next(item.default for item in RUN_TABLE if item.name == "steps")


class RunPages:
    """The pages.

    Args:
        state: State shared by all pages.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def index(self, request: PageRequest) -> Response:
        """The list of runs, with what was started and has no folder yet."""
        runs, waiting = self._state.run_list.runs(), self._waiting()
        return page("index.html.jinja", title="Runs", runs=runs, waiting=waiting, root=str(self._state.root))

    def index_live(self, request: PageRequest) -> Response:
        """The list alone."""
        runs, waiting = self._state.run_list.runs(), self._waiting()
        shown: list[object] = [(run.id, run.status, run.changed, run.remark) for run in runs]
        shown += [(job.id, job.kind) for job in waiting]
        return fragment("index_live.html.jinja", request, shown, is_done=False, runs=runs, waiting=waiting)

    def _waiting(self) -> list[jobs.StartedCommand]:
        return [job for job in self._state.jobs.all() if job.is_alive and not Path(job.target).exists()]

    def run(self, request: PageRequest) -> Response:
        """One run."""
        run = self._state.run(request.ids["run"])
        return page("run.html.jinja", title=run.name, **self._about(run), **self._details(run))

    def run_live(self, request: PageRequest) -> Response:
        """The part of a run's page that changes while it goes."""
        run = self._state.run(request.ids["run"])
        about = self._about(run)
        shown = (about["metrics"].version, run.status, run.process, about["output"])
        return fragment("run_live.html.jinja", request, shown, is_done=run.process is None, **about)

    def _about(self, run: ListedRun) -> dict[str, Any]:
        metrics, job = self._state.metrics(run), self._state.job_of(run)
        output = job.output.splitlines()[-_TAIL_LINES:] if job is not None else []
        return {
            "run": run,
            "metrics": metrics,
            "requested_steps": self._requested_steps(run, job),
            "figures": figures(metrics),
            "output": output,
            "error": job.error if job is not None and run.process is None and not run.summary else "",
        }

    def _requested_steps(self, run: ListedRun, job: jobs.StartedCommand | None) -> int | None:
        steps = run.fact("options", "steps")
        if steps is None and job is not None:
            try:
                steps = read_options(job.options, RUN_TABLE).get("steps", _STEPS)
            except PrgecError:
                steps = None
        return steps if isinstance(steps, int) else None

    def _details(self, run: ListedRun) -> dict[str, Any]:
        """Samples and tables of a run that has ended, as its report has them."""
        try:
            record = RunRecord(run.name, run.summary, (), ())
            samples = [report.sample(row) for row in run.summary.get("samples") or []]
            tables = report.tables(record)
        except (KeyError, TypeError, AttributeError):  # another version's, or damaged
            samples, tables = [], []
        used = run.fact("options", "program")
        program = next((p for p in self._state.programs() if used and p.path == Path(used).absolute()), None)
        return {
            "samples": samples,
            "tables": tables,
            "program": program,
            "has_options": self._resuming(run) is not None,
        }

    def stop(self, request: PageRequest) -> Response:
        """Ask a run to end after this step."""
        run = self._state.run(request.ids["run"])
        if run.process is None:
            raise HttpError(409, "the run has ended already")
        jobs.stop(run.process)
        return go(f"/runs/{run.id}")

    def resume(self, request: PageRequest) -> Response:
        """Go on with a run."""
        run = self._state.run(request.ids["run"])
        config = self._resuming(run)
        if config is None:
            raise HttpError(409, "the page does not know how this run was begun: prgec run --resume continues it")
        # Its paths are as seen from where it lies.
        options = read_options(config, RUN_TABLE)
        text = jobs.options_text(options, RUN_TABLE, "prgec run")
        self._state.jobs.start("run", run.folder, text, ["--out", str(run.folder), "--resume"])
        return go(f"/runs/{run.id}")

    def _resuming(self, run: ListedRun) -> Path | None:
        """Return the options of a run: its own, or those it was started with here."""
        job = self._state.job_of(run)
        places = [run.folder / CONFIG_NAME, *([job.options] if job is not None else [])]
        return next((path for path in places if path.is_file()), None)

    def compare(self, request: PageRequest) -> Response:
        """Several runs side by side."""
        names = dict.fromkeys(request.every("run"))
        if not 2 <= len(names) <= MOST_COMPARED:
            raise HttpError(400, f"choose 2 to {MOST_COMPARED} runs to compare")
        records, unreadable = [], []
        for run in map(self._state.run, names):
            try:
                records.append(read_run(run.folder))
            except PrgecError as error:
                unreadable.append(f"{run.name}: {error}")
        groups = compare.group(records)
        return page(
            "compare_runs.html.jinja",
            title=f"{len(records)} runs",
            names=[record.name for record in records],
            unreadable=unreadable,
            figures=[draw(chart) for chart in compare.charts(groups)],
            tables=compare.tables(groups),
        )
