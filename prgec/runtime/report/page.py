"""One self-contained HTML page about a run: what it learned, how it went, and what it was.

The page (page.html.jinja) needs no other file and no network; what it says is put together here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from prgec.runtime.report.chart import draw
from prgec.runtime.report.curves import accuracy_chart, gradient_chart, loss_chart, rate_chart, speed_chart
from prgec.runtime.report.record import RunRecord
from prgec.runtime.report.templates import read, render

MEGABYTE = 1e6
_SHOWN_PROMPT = 240
_SHOWN_STEPS = 50


@dataclass(frozen=True)
class Card:
    """One number, large."""

    title: str
    value: str
    note: str = ""
    is_main: bool = False


@dataclass(frozen=True)
class SampleAnswer:
    """The model's answer, and whether it is right."""

    text: str
    is_right: bool


@dataclass(frozen=True)
class Sample:
    """One example, before and after training."""

    prompt: str
    right: str
    before: SampleAnswer
    after: SampleAnswer


def to_html(run: RunRecord) -> str:
    """Return the page."""
    return render(
        "page.html.jinja",
        name=run.name,
        style=Markup(read("report.css")),
        what=_what(run),
        status=str(run.summary.get("status", "under way")),
        cards=list(_cards(run)),
        figures=_figures(run),
        samples=[sample(row) for row in run.summary.get("samples") or []],
        tables=tables(run),
    )


def _what(run: RunRecord) -> str:
    manifest = run.summary.get("manifest", {})
    what = " on ".join(str(manifest[key]) for key in ("model", "backend") if key in manifest)
    return f"{what}, {len(run.steps):,} steps" if what else f"{len(run.steps):,} steps"


def _cards(run: RunRecord) -> Iterator[Card]:
    s = run.summary
    for name, title in (("accuracy", "accuracy"), ("f1", "F1")):
        if s.get(name) is not None:
            yield Card(title, f"{s[name]:.1%}", _before(s.get(f"{name}_before"), ".1%"), is_main=True)
    if s.get("eval_loss") is not None:
        yield Card("evaluation loss", f"{s['eval_loss']:.4f}", _before(s.get("eval_loss_before"), ".4f"))
    recent = [step["loss"] for step in run.steps[-_SHOWN_STEPS:] if step["loss"] is not None]
    if recent:
        yield Card("training loss", f"{sum(recent) / len(recent):.4f}", f"mean of {len(recent)} steps")
    if s.get("steps_per_second"):
        rows = 2 * s["manifest"]["q"] * s["manifest"]["batch_size"] if "manifest" in s else 0
        note = f"{s['steps_per_second'] * rows:,.0f} rows a second" if rows else ""
        yield Card("steps a second", f"{s['steps_per_second']:.2f}", note)
    if s.get("seconds") is not None:
        yield Card("time", duration(s["seconds"]), "evaluations included")
    if s.get("peak_rss_bytes"):
        yield Card("peak memory", f"{s['peak_rss_bytes'] / MEGABYTE:,.0f} MB", "resident")
    if s.get("best_step") is not None:
        yield Card("kept", f"step {s['best_step']:,}", "scored best")


def _before(value: float | None, kind: str) -> str:
    return "" if value is None else f"before {value:{kind}}"


def _figures(run: RunRecord) -> list[Markup]:
    if not run.steps:
        return []
    charts = (
        loss_chart([step["loss"] for step in run.steps], run.scores),
        accuracy_chart(run.scores),
        gradient_chart(run.steps),
        rate_chart(run.steps),
        speed_chart(run.steps),
    )
    return [draw(chart) for chart in charts if chart is not None]


def sample(row: Mapping[str, str]) -> Sample:
    """Return an example as a page shows it."""
    answers = [
        SampleAnswer(_shown(row[name]), row[name].strip() == row["right"].strip()) for name in ("before", "after")
    ]
    return Sample(_shown(row["prompt"]), _shown(row["right"]), *answers)


def _shown(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _SHOWN_PROMPT else "... " + text[-_SHOWN_PROMPT:]


def tables(run: RunRecord) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return what the run and its program were, in tables."""
    whole = run.summary.get("manifest", {})
    manifest = {key: value for key, value in whole.items() if key not in ("sites", "versions")}
    sites = whole.get("sites")
    if sites:
        manifest["sites"] = f"{len(sites)}, {sites[0]['name']} to {sites[-1]['name']}"
    groups = {
        "Run": {**run.summary.get("options", {}), "state_sha256": run.summary.get("state_sha256")},
        "Program": manifest,
        "Versions": whole.get("versions", {}),
    }
    facts = {
        title: [
            (key, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
            for key, value in values.items()
            if value not in (None, "", False, [])
        ]
        for title, values in groups.items()
    }
    return [(title, each) for title, each in facts.items() if each]


def duration(seconds: float) -> str:
    """Return a time as people read it."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} m"
    return f"{minutes} m {rest} s" if minutes else f"{seconds:.1f} s"
