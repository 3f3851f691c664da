"""The page's routes. Names in paths are ids, which are looked up."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from prgec.runtime.report import templates as reports
from prgec.serve.ui.demo_pages import DemoPages
from prgec.serve.ui.fleet_pages import FleetPages
from prgec.serve.ui.page_request import Page, endpoint
from prgec.serve.ui.program_pages import ProgramPages
from prgec.serve.ui.run_pages import RunPages
from prgec.serve.ui.start_pages import StartPages
from prgec.serve.ui.state import State
from prgec.serve.ui.view import asset, page

# Path -> kind and text.
_ASSETS = {
    "/report.css": ("text/css", reports.read("report.css")),
    "/ui.css": ("text/css", asset("ui.css")),
    "/ui.js": ("text/javascript", asset("ui.js")),
}


def make_app(state: State) -> Starlette:
    """Return the application, without its guard."""
    runs, start, programs = RunPages(state), StartPages(state), ProgramPages(state)
    demo, fleets = DemoPages(state, start), FleetPages(state)
    return Starlette(
        routes=[
            _get("/", runs.index),
            _get("/live", runs.index_live),
            _get("/runs/new", start.new_run),
            _post("/runs/new", start.start_run),
            _get("/runs/{run}", runs.run),
            _get("/runs/{run}/live", runs.run_live),
            _post("/runs/{run}/stop", runs.stop),
            _post("/runs/{run}/resume", runs.resume),
            _get("/compare", runs.compare),
            _get("/devices", fleets.index),
            _get("/devices/{fleet}", fleets.fleet),
            _get("/devices/{fleet}/live", fleets.fleet_live),
            _get("/programs", programs.index),
            _get("/programs/new", start.new_program),
            _post("/programs/new", start.start_program),
            _get("/programs/{program}", programs.program),
            _get("/programs/{program}/try", programs.attempt),
            _post("/programs/{program}/try", programs.answer),
            _get("/jobs/{job}", start.job),
            _get("/jobs/{job}/live", start.job_live),
            _get("/demo", demo.demo),
            _get("/demo/live", demo.demo_live),
            _post("/demo/compile", demo.compile),
            _post("/demo/train", demo.train),
            *(Route(path, _asset(kind, text), methods=["GET"]) for path, (kind, text) in _ASSETS.items()),
        ],
        exception_handlers={404: _not_found, 405: _not_found},
    )


def _get(path: str, answer: Page) -> Route:
    return Route(path, endpoint(answer), methods=["GET"])


def _post(path: str, answer: Page) -> Route:
    return Route(path, endpoint(answer), methods=["POST"])


def _asset(kind: str, text: str) -> Any:
    async def answer(request: Request) -> Response:
        return Response(text, media_type=kind)

    return answer


async def _not_found(request: Request, error: Exception) -> Response:
    return page("error.html.jinja", 404, title="Not here", error="there is no such page")
