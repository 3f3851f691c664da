"""The templates of this folder, rendered so that data are text and never markup."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, **values: Any) -> Markup:
    """Return a template of this folder with the values in it; what is not `Markup` is escaped."""
    return Markup(_environment().get_template(template).render(values))  # noqa: S704 - it was escaped


def read(name: str) -> str:
    """Return the text of a file of this folder."""
    return resources.files("prgec.runtime.report").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(read),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
