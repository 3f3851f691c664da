"""One self-contained HTML page about a run: what it learned, how it went, and what it was.

Everything is read from the run folder (run.json, metrics.jsonl); the page needs no other file and no network.

Letters: q queries.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from prgec.errors import DataError
from prgec.formats.run_folder import METRICS_NAME, PARTIAL_METRICS_NAME, SUMMARY_NAME
from prgec.report.chart import Line, chart

_MEGABYTE = 1e6
_SHOWN_PROMPT = 240


@dataclass(frozen=True)
class RunRecord:
    """What a run folder holds for people.

    Attributes:
        name: Name of the folder.
        summary: Content of run.json; empty while the run is under way.
        steps: Lines of metrics.jsonl about steps.
        evaluations: Its lines about evaluations.
    """

    name: str
    summary: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]


def read_run(folder: Path) -> RunRecord:
    """Read a run folder, also one of a run under way.

    Raises:
        DataError: If it holds no run, or its files are damaged.
    """
    metrics = next((folder / n for n in (METRICS_NAME, PARTIAL_METRICS_NAME) if (folder / n).is_file()), None)
    if metrics is None:
        raise DataError("no run in this folder", where=folder, hint="name the --out of a prgec run")
    summary_path = folder / SUMMARY_NAME
    try:
        summary = json.loads(summary_path.read_bytes()) if summary_path.is_file() else {}
        text = metrics.read_text(encoding="utf-8")
        # The last line of a run under way may be half a line.
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        steps = [line for line in lines if "loss" in line]
        evaluations = [line for line in lines if "eval_loss" in line]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"the run's files are damaged: {error}", where=folder) from error
    return RunRecord(folder.resolve().name, summary, steps, evaluations)


def to_html(run: RunRecord) -> str:
    """Return the page."""
    parts = [_headline(run), _cards(run), _charts(run), _samples(run), _configuration(run)]
    style = resources.files("prgec.report").joinpath("report.css").read_text(encoding="utf-8")
    title = html.escape(f"{run.name} - prgec")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(filter(None, parts))
        + "\n</main>\n</body>\n</html>\n"
    )


def _headline(run: RunRecord) -> str:
    manifest = run.summary.get("manifest", {})
    status = str(run.summary.get("status", "under way"))
    what = " on ".join(str(manifest[key]) for key in ("model", "backend") if key in manifest)
    steps = f"{len(run.steps):,} steps"
    return (
        f"<header><p class='kicker'>prgec run</p><h1>{html.escape(run.name)}</h1>"
        f"<p class='lead'>{html.escape(what)}{', ' if what else ''}{steps}"
        f"<span class='status {_status_class(status)}'>{html.escape(status)}</span></p></header>"
    )


def _status_class(status: str) -> str:
    return "good" if status == "complete" else "odd"


def _cards(run: RunRecord) -> str:
    s = run.summary
    cards = []
    for name, title in (("accuracy", "accuracy"), ("f1", "F1")):
        if s.get(name) is not None:
            cards.append(_card(title, f"{s[name]:.1%}", f"before {s[f'{name}_before']:.1%}", is_main=True))
    if s.get("eval_loss") is not None:
        cards.append(_card("evaluation loss", f"{s['eval_loss']:.4f}", f"before {s['eval_loss_before']:.4f}"))
    if run.steps:
        recent = [step["loss"] for step in run.steps[-50:]]
        cards.append(_card("training loss", f"{sum(recent) / len(recent):.4f}", f"mean of {len(recent)} steps"))
    if s.get("steps_per_second"):
        rows = 2 * s["manifest"]["q"] * s["manifest"]["batch_size"] if "manifest" in s else 0
        note = f"{s['steps_per_second'] * rows:,.0f} rows a second" if rows else ""
        cards.append(_card("steps a second", f"{s['steps_per_second']:.2f}", note))
    if s.get("seconds") is not None:
        cards.append(_card("time", _duration(s["seconds"]), "evaluations included"))
    if s.get("peak_rss_bytes"):
        cards.append(_card("peak memory", f"{s['peak_rss_bytes'] / _MEGABYTE:,.0f} MB", "resident"))
    if s.get("best_step") is not None:
        cards.append(_card("kept", f"step {s['best_step']:,}", "scored best"))
    return f"<section class='cards'>{''.join(cards)}</section>"


def _card(title: str, value: str, note: str, *, is_main: bool = False) -> str:
    kind = "card main" if is_main else "card"
    return (
        f"<div class='{kind}'><div class='name'>{html.escape(title)}</div>"
        f"<div class='value'>{html.escape(value)}</div>"
        f"<div class='note'>{html.escape(note)}</div></div>"
    )


def _charts(run: RunRecord) -> str:
    if not run.steps:
        return ""
    steps = [step["step"] for step in run.steps]
    at = [line["step"] for line in run.evaluations]
    mean_g = [sum(step["g"]) / len(step["g"]) for step in run.steps]
    size_g = [(sum(g * g for g in step["g"]) / len(step["g"])) ** 0.5 for step in run.steps]
    losses = [step["loss"] for step in run.steps]
    window = max(1, len(steps) // 20)
    smooth = f"mean of {window} steps"
    loss_lines = [
        Line("each step", steps, losses, "faint"),
        Line(smooth, steps[window - 1 :], _running_mean(losses, window), "one"),
    ]
    if at:
        loss_lines.append(Line("evaluation", at, [line["eval_loss"] for line in run.evaluations], "two", dots=True))
    figures = [chart("Loss", loss_lines, wide=True)]
    scored = [line for line in run.evaluations if line.get("eval_accuracy") is not None]
    if scored:
        values = [100 * line["eval_accuracy"] for line in scored]
        accuracy = Line("evaluation", [line["step"] for line in scored], values, "three", dots=True)
        figures.append(chart("Accuracy, %", [accuracy]))
    figures.append(
        chart(
            "Projected gradient g",
            [
                Line("size: root mean square over queries", steps, size_g, "faint"),
                Line(f"size, {smooth}", steps[window - 1 :], _running_mean(size_g, window), "one"),
                Line(f"mean over queries, {smooth}", steps[window - 1 :], _running_mean(mean_g, window), "two"),
            ],
        )
    )
    figures.append(chart("Learning rate", [Line("lr", steps, [step["lr"] for step in run.steps], "three")]))
    timed = [step for step in run.steps if step.get("seconds") is not None]
    if len(timed) > window + 1:
        xs, ys = _speed(timed, window)
        figures.append(chart("Steps a second, evaluations included", [Line(f"over {window} steps", xs, ys, "one")]))
    return f"<section class='charts'>{''.join(figures)}</section>"


def _speed(timed: Sequence[Mapping[str, Any]], window: int) -> tuple[list[float], list[float]]:
    pairs = list(zip(timed, timed[window:], strict=False))
    spans = [(late["step"], late["seconds"] - early["seconds"]) for early, late in pairs]
    return [step for step, span in spans if span > 0], [window / span for _, span in spans if span > 0]


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    total, means = sum(values[:window]), []
    for index in range(window, len(values) + 1):
        means.append(total / window)
        if index < len(values):
            total += values[index] - values[index - window]
    return means


def _samples(run: RunRecord) -> str:
    rows = run.summary.get("samples") or []
    if not rows:
        return ""
    body = "".join(
        f"<tr><td class='prompt'>{_shown(row['prompt'])}</td><td>{_shown(row['right'])}</td>"
        f"{_answer(row['before'], row['right'])}{_answer(row['after'], row['right'])}</tr>"
        for row in rows
    )
    return (
        "<section><h2>Answers before and after</h2><table class='samples'><thead><tr><th>prompt</th><th>right</th>"
        f"<th>before</th><th>after</th></tr></thead><tbody>{body}</tbody></table></section>"
    )


def _answer(text: str, right: str) -> str:
    kind = "right" if text.strip() == right.strip() else "wrong"
    mark = "&#10003;" if kind == "right" else "&#10007;"
    return f"<td class='{kind}'><span class='mark'>{mark}</span> {_shown(text)}</td>"


def _shown(text: str) -> str:
    text = text.strip()
    short = text if len(text) <= _SHOWN_PROMPT else "... " + text[-_SHOWN_PROMPT:]
    return html.escape(short).replace("\n", "<br>")


def _configuration(run: RunRecord) -> str:
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
    tables = [_table(title, values) for title, values in groups.items() if values]
    return f"<section><h2>Configuration</h2><div class='tables'>{''.join(tables)}</div></section>"


def _table(title: str, values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{html.escape(key)}</th><td>{html.escape(_text(value))}</td></tr>"
        for key, value in values.items()
        if value not in (None, "", False, [])
    )
    return f"<details open><summary>{html.escape(title)}</summary><table class='facts'>{rows}</table></details>"


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} m"
    return f"{minutes} m {rest} s" if minutes else f"{seconds:.1f} s"
