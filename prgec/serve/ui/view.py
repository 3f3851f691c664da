"""Templates of the page, rendered so that data are text and never markup; those of reports can be parts of them."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from starlette.responses import HTMLResponse

from prgec.runtime.report import templates as reports


def page(template: str, status: int = 200, headers: Mapping[str, str] | None = None, **values: object) -> HTMLResponse:
    """Return a template with values in it."""
    return HTMLResponse(_environment().get_template(template).render(values), status, headers)


def asset(name: str) -> str:
    """Return the text of a file of this folder."""
    return resources.files("prgec.serve.ui").joinpath(name).read_text(encoding="utf-8")


def prepare() -> None:
    """Compile all templates, which the first request of each would wait for."""
    for entry in resources.files("prgec.serve.ui").joinpath("templates").iterdir():
        _environment().get_template(entry.name)


def _read(name: str) -> str:
    folder = resources.files("prgec.serve.ui").joinpath("templates")
    own = folder.joinpath(name)
    return own.read_text(encoding="utf-8") if own.is_file() else reports.read(name)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _percent(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, float | int) else ""


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float | int) else ""


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(when=_when, percent=_percent, number=_number)
    return environment
