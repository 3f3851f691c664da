"""One self-contained HTML page about several runs: their curves over one another, and what made them differ.

Runs that differ in their seed alone are one group: a line of one colour each, and a row of scores with their spread.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from prgec.runtime.report.chart import draw
from prgec.runtime.report.curves import Chart, Curve, is_number, running_mean
from prgec.runtime.report.page import MEGABYTE, duration
from prgec.runtime.report.record import RunRecord
from prgec.runtime.report.templates import read, render
from prgec.runtime.report.thin import thin

# Colours of the style sheet; further groups begin again, with dashes.
NUM_COLORS = 8
# Fields left out: the name of a run or a program, and those that follow from others.
_NO_OPTIONS = {"out", "force", "resume", "log_to", "seed", "ignore_memory", "no_verify", "snapshot_every"}
_NO_FACTS = {
    "sites",
    "versions",
    "config",
    "pipeline",
    "planned_bytes",
    "data_sha256",
    "prefix_sha256",
    "a_sha256",
    "prompts_sha256",
}
# Points of one line that a chart of this width can show.
_MOST_POINTS = 2000
_SCORES = (("accuracy", "accuracy", ".1%"), ("f1", "F1", ".1%"), ("eval_loss", "evaluation loss", ".4f"))


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Attributes:
        name: The run's, or what they have in common that others have not.
        style: Style of its lines.
        runs: The runs.
    """

    name: str
    style: str
    runs: Sequence[RunRecord]


def to_html(runs: Sequence[RunRecord]) -> str:
    """Return the page."""
    groups = group(runs)
    return render(
        "compare.html.jinja",
        style=Markup(read("report.css")),
        names=[run.name for run in runs],
        figures=[draw(chart) for chart in charts(groups)],
        tables=tables(groups),
    )


def tables(groups: Sequence[Group]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return what the page tabulates: title, head and rows of each table."""
    runs = [run for each in groups for run in each.runs]
    differing = differences(runs)
    scored = [score for score in _SCORES if any(run.summary.get(score[0]) is not None for run in runs)]
    options = [[run.name, *(shown(_with_seed(run).get(key)) for key in differing)] for run in runs]
    found = [
        ("Final scores", ["runs", "seeds", *(title for _, title, _ in scored)], [_scores(g, scored) for g in groups]),
        ("What differs", ["run", *differing], options),
        ("Memory and time", ["run", "status", "steps", "steps a second", "time", "peak memory"], [*map(_cost, runs)]),
    ]
    return [table for table in found if len(table[1]) > 1]


def facts(run: RunRecord) -> dict[str, Any]:
    """Return options of a run, and what its program is."""
    options = {key: value for key, value in run.summary.get("options", {}).items() if key not in _NO_OPTIONS}
    manifest = {key: value for key, value in run.summary.get("manifest", {}).items() if key not in _NO_FACTS}
    return {**options, **{key if key not in options else f"program {key}": value for key, value in manifest.items()}}


def differences(runs: Sequence[RunRecord]) -> list[str]:
    """Return which facts are not the same for all runs, the seed among them."""
    found = [_with_seed(run) for run in runs]
    keys = dict.fromkeys(key for each in found for key in each)
    return [key for key in keys if len({shown(each.get(key)) for each in found}) > 1]


def _with_seed(run: RunRecord) -> dict[str, Any]:
    return {**facts(run), "seed": run.summary.get("options", {}).get("seed")}


def group(runs: Sequence[RunRecord]) -> list[Group]:
    """Return runs that differ in their seed alone as one group each, in order; one under way is alone."""
    alike: dict[str, list[RunRecord]] = {}
    for number, run in enumerate(runs):
        key = repr(sorted((key, shown(value)) for key, value in facts(run).items())) if run.summary else str(number)
        alike.setdefault(key, []).append(run)
    differing = [key for key in differences(runs) if key != "seed"]
    groups = []
    for number, members in enumerate(alike.values()):
        name = members[0].name
        if len(members) > 1:
            found = facts(members[0])
            name = ", ".join(f"{key} {shown(found.get(key))}" for key in differing) or "all"
        dashes = " dashes" if number // NUM_COLORS % 2 else ""
        groups.append(Group(name, f"s{number % NUM_COLORS + 1}{dashes}", members))
    return groups


def charts(groups: Sequence[Group]) -> list[Chart]:
    """Return curves of the training loss, and of what evaluations measured."""
    found = [
        ("Training loss, running mean", [(each, _losses(run)) for each in groups for run in each.runs], False),
        ("Evaluation loss", [(each, _scored(run, 1, 1.0)) for each in groups for run in each.runs], True),
        ("Accuracy, %", [(each, _scored(run, 2, 100.0)) for each in groups for run in each.runs], True),
    ]
    return [
        Chart(title, lines, is_wide=not dots)
        for title, curves, dots in found
        if (lines := _lines([(each, curve) for each, curve in curves if curve[0]], dots))
    ]


def _lines(curves: Sequence[tuple[Group, tuple[Sequence[float], Sequence[float]]]], dots: bool) -> tuple[Curve, ...]:
    """Return a line for each curve; the legend names a group once."""
    lines, named = [], set()
    for each, (xs, ys) in curves:
        lines.append(Curve("" if each.style in named else each.name, xs, ys, each.style, dots))
        named.add(each.style)
    return tuple(lines)


def _losses(run: RunRecord) -> tuple[Sequence[float], Sequence[float]]:
    known = [(step["step"], step["loss"]) for step in run.steps if is_number(step["loss"])]
    steps, means = running_mean([step for step, _ in known], [loss for _, loss in known])
    return thin(steps, means, _MOST_POINTS)


def _scored(run: RunRecord, place: int, scale: float) -> tuple[Sequence[float], Sequence[float]]:
    known = [(score[0], score[place]) for score in run.scores]
    points = [(step, scale * value) for step, value in known if value is not None]
    return [step for step, _ in points], [value for _, value in points]


def _scores(each: Group, scored: Sequence[tuple[str, str, str]]) -> list[str]:
    seeds = sorted(str(run.summary.get("options", {}).get("seed", "")) for run in each.runs)
    row = [each.name, ", ".join(seeds)]
    for name, _, kind in scored:
        values = [run.summary[name] for run in each.runs if run.summary.get(name) is not None]
        spread = f" \u00b1 {statistics.stdev(values):{kind}}" if len(values) > 1 else ""
        row.append(f"{statistics.fmean(values):{kind}}{spread}" if values else "")
    return row


def _cost(run: RunRecord) -> list[str]:
    s: Mapping[str, Any] = run.summary
    return [
        run.name,
        str(s.get("status", "under way")),
        f"{len(run.steps):,}",
        f"{s['steps_per_second']:.2f}" if s.get("steps_per_second") else "",
        duration(s["seconds"]) if s.get("seconds") is not None else "",
        f"{s['peak_rss_bytes'] / MEGABYTE:,.0f} MB" if s.get("peak_rss_bytes") else "",
    ]


def shown(value: Any) -> str:
    """Return a value as people read it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
