"""The bundled model and task in three clicks: compile, train, try."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from prgec.compiler.options import compile_table
from prgec.demo import BATCH_SIZES, SEQ_LEN, STEPS, data_file
from prgec.runtime.runs.options import RUN_TABLE
from prgec.serve.ui.curves import figures
from prgec.serve.ui.jobs import StartedCommand, options_text
from prgec.serve.ui.page_request import PageRequest, fragment, go
from prgec.serve.ui.programs import SUFFIX
from prgec.serve.ui.run_list import ListedRun
from prgec.serve.ui.start_pages import StartPages
from prgec.serve.ui.state import State
from prgec.serve.ui.view import page

# The method that learns the task in the least time, compilation included.
_METHOD = "shortcut"
_EVAL_EVERY = 25


class DemoPages:
    """The bundled model and task: compile, train, try.

    Args:
        state: State shared by all pages.
        start: Starts programs.
    """

    def __init__(self, state: State, start: StartPages) -> None:
        self._state, self._start = state, start
        self._program = state.root / f"demo{SUFFIX}"
        self._folder = state.root / "demo"

    def demo(self, request: PageRequest) -> Response:
        """The three steps, and where they are."""
        return page("demo.html.jinja", title="Demo", **self._about())

    def demo_live(self, request: PageRequest) -> Response:
        """The part of them that changes."""
        about = self._about()
        shown = (about["stage"], about["metrics"].version, about["error"])
        return fragment("demo_live.html.jinja", request, shown, is_done=False, **about)

    def compile(self, request: PageRequest) -> Response:
        """The first click."""
        values = {"model": "demo", "method": _METHOD, "seq_len": SEQ_LEN, "batch_size": BATCH_SIZES[_METHOD]}
        if not self._program.is_file():
            self._start.compile_to(self._program, options_text(values, compile_table(), "prgec compile"))
        return go("/demo")

    def train(self, request: PageRequest) -> Response:
        """The second click."""
        values = {
            "program": self._program,
            "data": data_file("train"),
            "eval_data": data_file("test"),
            "steps": STEPS[_METHOD],
            "eval_every": _EVAL_EVERY,
        }
        if not self._folder.exists():
            text = options_text(values, RUN_TABLE, "prgec run")
            self._state.jobs.start("run", self._folder, text, ["--out", str(self._folder)])
        return go("/demo")

    def _about(self) -> dict[str, Any]:
        name = self._state.run_list.id_of(self._folder)
        jobs = self._state.jobs.of(self._program), self._state.jobs.of(self._folder)
        run = self._state.run_list.find(name) or ListedRun(
            id=name, name=self._folder.name, folder=self._folder, summary={}, process=None, remark="", changed=0.0
        )
        metrics = self._state.metrics(run)
        return {
            "stage": self._stage(run, *jobs),
            "error": next((job.error for job in reversed(jobs) if job is not None and job.error), ""),
            "metrics": metrics,
            "figures": figures(metrics),
            "run": run,
            "program": self._state.run_list.id_of(self._program),
            "requested_steps": STEPS[_METHOD],
        }

    def _stage(self, run: ListedRun, compiling: StartedCommand | None, training: StartedCommand | None) -> str:
        if run.adapter is not None and run.process is None:
            return "trained"
        if run.process is not None or (training is not None and training.is_working):
            return "training"
        if compiling is not None and compiling.is_alive:
            return "compiling"
        return "compiled" if self._program.is_file() else "new"
