"""Pages that begin something: a run, or a program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.responses import Response

from prgec.compiler.check import check_options
from prgec.compiler.options import compile_table
from prgec.compiler.options_from import options_from
from prgec.errors import PrgecError, UsageError
from prgec.runtime.runs.option_checks import check_run
from prgec.runtime.runs.options import RUN_TABLE, RunOptions
from prgec.serve.ui import forms
from prgec.serve.ui.jobs import StartedCommand, options_text
from prgec.serve.ui.page_request import PageRequest, fragment, go
from prgec.serve.ui.programs import SUFFIX, passes_of
from prgec.serve.ui.state import State
from prgec.serve.ui.view import page
from prgec.serve.web.refusal import HttpError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class StartPages:
    """The pages.

    Args:
        state: State shared by all pages.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def new_run(self, request: PageRequest) -> Response:
        """The form of a run; filled in where a program is named."""
        given = {}
        if name := request.first("program"):
            fields = [field for section in forms.sections(RUN_TABLE, {}) for field in section.fields]
            given = {field.name: field.value for field in fields}
            program = self._state.program(name)
            given["program"] = str(program.path)
            if request.first("objective") == "kto":
                given |= {"objective": "kto", "data": str(self._state.feedback_of(program))}
        return self._run_form(given)

    def start_run(self, request: PageRequest) -> Response:
        """Show the file that a form makes, or start the run."""
        try:
            values = forms.values(RUN_TABLE, request.form)
            if "program" not in values:
                raise UsageError("a run needs a program")
            check_run(RunOptions(**values))
            folder = self._free(request.form.get("name", ""), values["program"].stem, "")
            text = options_text(values, RUN_TABLE, "prgec run")
            if request.form.get("do") == "show":
                return self._run_form(request.form, text=text)
            self._state.jobs.start("run", folder, text, ["--out", str(folder)])
        except PrgecError as error:
            return self._run_form(request.form, error=str(error))
        return go(f"/runs/{self._state.run_list.id_of(folder)}")

    def _run_form(self, given: Mapping[str, str], *, text: str = "", error: str = "") -> Response:
        places = [str(program.path) for program in self._state.programs() if program.is_there]
        return page(
            "form.html.jinja",
            400 if error else 200,
            title="New run",
            action="/runs/new",
            verb="Start the run",
            sections=forms.sections(RUN_TABLE, given),
            name=given.get("name", ""),
            name_help="Folder of the run",
            text=text,
            error=error,
            suggestions={"program": places, "data": [], "eval_data": []},
        )

    def new_program(self, request: PageRequest) -> Response:
        """The form of a program."""
        return self._program_form({})

    def start_program(self, request: PageRequest) -> Response:
        """Show the file that a form makes, or start compiling."""
        try:
            values = forms.values(compile_table(), request.form)
            if "model" not in values:
                raise UsageError("a program needs a model")
            defaults = {item.name: None if item.option.unset else item.default for item in compile_table()}
            check_options(options_from({**defaults, **values}))
            target = self._free(request.form.get("name", ""), Path(values["model"]).name, SUFFIX)
            text = options_text(values, compile_table(), "prgec compile")
            if request.form.get("do") == "show":
                return self._program_form(request.form, text=text)
            job = self.compile_to(target, text)
        except PrgecError as error:
            return self._program_form(request.form, error=str(error))
        return go(f"/jobs/{job.id}")

    def _program_form(self, given: Mapping[str, str], *, text: str = "", error: str = "") -> Response:
        return page(
            "form.html.jinja",
            400 if error else 200,
            title="New program",
            action="/programs/new",
            verb="Compile",
            sections=forms.sections(compile_table(), given),
            name=given.get("name", ""),
            name_help="File of the program",
            text=text,
            error=error,
            suggestions={"model": ["demo"]},
        )

    def compile_to(self, target: Path, text: str) -> StartedCommand:
        """Start compiling a program, with the graph after each pass beside it."""
        self._state.root.mkdir(parents=True, exist_ok=True)
        arguments = ["-o", str(target), "--dump-passes", str(passes_of(target))]
        return self._state.jobs.start("compile", target, text, arguments)

    def _free(self, name: str, stem: str, suffix: str) -> Path:
        """Return the place of a name in the folder of runs, or the first free one.

        Raises:
            UsageError: If it is not a name, or taken.
        """
        root, name = self._state.root, name.strip().removesuffix(suffix)
        if not name:
            stem = re.sub(r"[^A-Za-z0-9._-]", "-", stem).lstrip("._-")[:48] or "run"
            places = (root / f"{stem}-{number}{suffix}" for number in range(1, 1_000_000))
            return next(place for place in places if not place.exists() and self._state.jobs.of(place) is None)
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not a name; expected letters, digits, dots, dashes and underscores")
        place = root / (name + suffix)
        job = self._state.jobs.of(place)
        # The lock reports a target under way.
        if place.exists() and not (job is not None and job.is_working):
            raise UsageError(f"there is a {place.name} already", hint="choose another name, or go on with it")
        return place

    def job(self, request: PageRequest) -> Response:
        """A command that was started."""
        return page("job.html.jinja", title="Compiling", **self._about(request))

    def job_live(self, request: PageRequest) -> Response:
        """The part of it that changes."""
        about = self._about(request)
        is_alive = about["job"].is_alive
        shown = (about["job"].output, is_alive)
        return fragment("job_live.html.jinja", request, shown, is_done=not is_alive, **about)

    def _about(self, request: PageRequest) -> dict[str, Any]:
        job = self._state.jobs.find(request.ids["job"])
        if job is None:
            raise HttpError(404, "there is no such command")
        target = Path(job.target)
        program = self._state.run_list.id_of(target) if job.kind == "compile" and target.is_file() else ""
        return {"job": job, "name": target.name, "program": program}
