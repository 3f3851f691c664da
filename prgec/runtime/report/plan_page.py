"""One self-contained HTML page about a plan: the choice, the picture and the tables.

The page (plan_page.html.jinja) needs no other file and no network; what it says comes as text.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from prgec.runtime.report.templates import read, render

_LAST_COLUMN_GOOD = "yes"


@dataclass(frozen=True, kw_only=True)
class PlanPage:
    """Content of the page.

    Attributes:
        name: The model.
        what: Size of the model, and the requested plan.
        choice: The way to take.
        reasons: Why, a sentence each.
        commands: Lines to paste.
        chart_png: The picture.
        ways: Cells of the ways to train, below a head; the last column says whether they fit.
        others: Cells of what a user would do instead, below a head.
        times: Where times are from.
    """

    name: str
    what: str
    choice: str
    reasons: Sequence[str]
    commands: Sequence[str]
    chart_png: bytes
    ways: Sequence[Sequence[str]]
    others: Sequence[Sequence[str]]
    times: str


def to_html(page: PlanPage) -> str:
    """Return the page."""
    return render(
        "plan_page.html.jinja",
        page=page,
        style=Markup(read("report.css")),
        picture=base64.b64encode(page.chart_png).decode(),
        good=_LAST_COLUMN_GOOD,
    )
