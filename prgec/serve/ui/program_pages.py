"""Pages about programs: what is in one, its graph between passes, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from prgec.core.contract.inspection import inspect_program
from prgec.core.data.tasks import TASKS
from prgec.core.formats.thumbs import better_answer, note_answer
from prgec.errors import PrgecError, UsageError
from prgec.serve.ui.page_request import PageRequest
from prgec.serve.ui.programs import KnownProgram, graph_rows, pass_names
from prgec.serve.ui.run_list import ListedRun
from prgec.serve.ui.state import State
from prgec.serve.ui.view import page

_MOST_TEXTS, _MOST_CHARACTERS, _MOST_TOKENS = 32, 4000, 256
_ROLES = {"user", "assistant"}
_GOOD, _BAD, _BETTER = _JUDGEMENTS = ("good", "bad", "better")


class ProgramPages:
    """The pages.

    Args:
        state: State shared by all pages.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def index(self, request: PageRequest) -> Response:
        """The list of programs."""
        return page("programs.html.jinja", title="Programs", programs=self._state.programs())

    def program(self, request: PageRequest) -> Response:
        """One program: where its ops run and why, and its graph after two passes."""
        program = self._state.program(request.ids["program"])
        names, wanted = pass_names(program), request.first("find")[:200]
        ends = {"left": names[0], "right": names[-1]} if names else {}
        chosen = {side: request.first(side) if request.first(side) in names else name for side, name in ends.items()}
        sides = [(name, *graph_rows(program, name, wanted)) for name in chosen.values()]
        inspection, error = None, ""
        try:
            inspection = inspect_program(program.path)
        except PrgecError as gone:
            error = str(gone) if program.is_there else f"the program is gone: {program.path}"
        return page(
            "program.html.jinja",
            title=program.name,
            program=program,
            inspection=inspection,
            error=error,
            names=names,
            chosen=chosen,
            sides=sides,
            find=wanted,
        )

    def attempt(self, request: PageRequest) -> Response:
        """The form to try a program, with a run's adapter where one is named."""
        return self._try_page(request, {})

    def answer(self, request: PageRequest) -> Response:
        """The program's answer to texts, or in a conversation."""
        program, run = self._chosen(request)
        if request.form.get("do") in _JUDGEMENTS:
            return self._judge(request, program)
        try:
            question = _conversation(request.form) if request.form.get("do") == "chat" else _texts(request.form)
            adapter = run.adapter if run is not None else None
            answers = self._state.inference.ask(program.path, {**question, "adapter": str(adapter) if adapter else ""})
        except PrgecError as error:
            return self._try_page(request, request.form, error=str(error), messages=_kept(request.form))
        if question["kind"] == "chat":
            # As on the command line, the conversation continues with the trained program's answer.
            *_, last = answers.values()
            messages = [*question["messages"], {"role": "assistant", "content": last}]
            return self._try_page(request, request.form, messages=messages, chat=answers)
        return self._try_page(request, request.form, texts=question["texts"], answers=answers)

    def _judge(self, request: PageRequest, program: KnownProgram) -> Response:
        """Note what the reader says of the last answer; a better one takes its place."""
        try:
            messages, verdict = _messages(request.form), request.form["do"]
            if not messages or messages[-1]["role"] != "assistant":
                raise UsageError("there is no answer yet")
            better = request.form.get("better", "").strip()
            if verdict == _BETTER and not 1 <= len(better) <= _MOST_CHARACTERS:
                raise UsageError(f"expected 1 to {_MOST_CHARACTERS} characters of a better answer")
            is_chat = any(self._state.inference.ask(program.path, {"kind": "template"}).values())
            path = self._state.feedback_of(program)
            path.parent.mkdir(parents=True, exist_ok=True)
            if verdict == _BETTER:
                note_answer(path, messages, is_good=False, is_chat=is_chat)
                messages[-1] = better_answer(better, is_chat=is_chat)
            note_answer(path, messages, is_good=verdict != _BAD, is_chat=is_chat)
        except PrgecError as error:
            return self._try_page(request, request.form, error=str(error), messages=_kept(request.form))
        return self._try_page(request, request.form, messages=messages)

    def _chosen(self, request: PageRequest) -> tuple[KnownProgram, ListedRun | None]:
        program = self._state.program(request.ids["program"])
        name = request.form.get("run", request.first("run"))
        return program, self._state.run(name) if name else None

    def _try_page(self, request: PageRequest, form: Mapping[str, str], **found: Any) -> Response:
        program, run = self._chosen(request)
        runs = [each for each in self._state.run_list.runs() if each.adapter is not None]
        own = [each for each in runs if str(each.fact("options", "program")) == str(program.path)]
        about = {"error": "", "texts": [], "answers": {}, "messages": [], "chat": {}, **found}
        try:
            manifest = inspect_program(program.path).manifest
            context, learns = manifest.context, manifest.label_weights or manifest.method == "prge"
        except PrgecError:
            context, learns = 0, False
        feedback = self._state.feedback_of(program)
        if not program.is_there:
            about["error"] = about["error"] or f"the program is gone: {program.path}"
        tasks = [name for name, task in TASKS.items() if len(getattr(task, "fields", "--")) == 1]
        return page(
            "try.html.jinja",
            400 if about["error"] else 200,
            title=f"Try {program.name}",
            program=program,
            run=run,
            runs=own or runs,
            tasks=tasks,
            task=form.get("task", "sst2"),
            typed=form.get("texts", ""),
            candidates=form.get("candidates", ""),
            context=context,
            learns=learns,
            feedback=feedback if feedback.is_file() else None,
            history=json.dumps(about["messages"]),
            **about,
        )


def _texts(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the question of a form with texts, one a line."""
    texts = [line.strip() for line in form.get("texts", "").splitlines() if line.strip()]
    if not 1 <= len(texts) <= _MOST_TEXTS or max(map(len, texts)) > _MOST_CHARACTERS:
        raise UsageError(f"expected 1 to {_MOST_TEXTS} lines of at most {_MOST_CHARACTERS} characters")
    task = form.get("task", "")
    # Names alone: a task may also be a file, and files are for the command line.
    if task not in TASKS:
        raise UsageError("there is no such task")
    candidates = [part for line in form.get("candidates", "").splitlines() if (part := line.rstrip("\r"))]
    return {"kind": "predict", "texts": texts, "task": task, "candidates": candidates}


def _messages(form: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the conversation so far."""
    try:
        messages = json.loads(form.get("history") or "[]")
    except (ValueError, RecursionError) as error:
        raise UsageError("the conversation cannot be read") from error
    is_known = isinstance(messages, list) and all(
        isinstance(each, dict)
        and set(each) == {"role", "content"}
        and each["role"] in _ROLES
        and isinstance(each["content"], str)
        for each in messages
    )
    if not is_known:
        raise UsageError("the conversation cannot be read")
    return list(messages)


def _kept(form: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the conversation so far, where there is one that can be read."""
    try:
        return _messages(form)
    except UsageError:
        return []


def _conversation(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the question of a form with a conversation."""
    messages = _messages(form)
    say = form.get("say", "").strip()
    if not 1 <= len(say) <= _MOST_CHARACTERS:
        raise UsageError(f"expected 1 to {_MOST_CHARACTERS} characters to answer")
    return {"kind": "chat", "messages": [*messages, {"role": "user", "content": say}], "max_tokens": _MOST_TOKENS}
