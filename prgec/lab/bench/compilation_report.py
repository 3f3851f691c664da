"""Write measured compilations as Markdown, and draw how they grow."""

from __future__ import annotations

import io
from pathlib import Path

from prgec.core.machine.files import write_atomic
from prgec.lab.bench.compilation import Compilation, CompilationTable

_HEADER = ("model", "route", "load", "export", "passes", "lower", "write", "process s", "CPU s", "peak MB", "file MB")


def to_markdown(table: CompilationTable) -> str:
    """Return the report, ending in a newline."""
    m = table.machine
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    lines = [
        "# Compiling",
        "",
        f"`{table.command}` on {m['cpu']}, {m['cores']} cores, {m['memory_bytes'] / 1e9:.0f} GB; load "
        f"{m['load_1min']} before the start. {versions}.",
        "",
        "Seconds of each phase, then of the whole process with its imports. Peak memory is the resident maximum with "
        "mapped files. A model without another name has random weights.",
        "",
        f"| {' | '.join(_HEADER)} |",
        "|---|---" + "|---:" * (len(_HEADER) - 2) + "|",
        *(f"| {' | '.join(_cells(row))} |" for row in table.rows),
        "",
        *_comparisons(table),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _cells(row: Compilation) -> list[str]:
    phases = [f"{row.seconds.get(name, 0):.1f}" for name in ("load", "export", "passes", "lower", "write")]
    totals = [f"{row.wall_s:.1f}", f"{row.cpu_s:.1f}", f"{row.peak_rss_bytes / 1e6:.0f}", f"{row.file_bytes / 1e6:.1f}"]
    return [row.model, row.route, *phases, *totals]


def _comparisons(table: CompilationTable) -> list[str]:
    """Ratios of the routes for each model, and whether their files are equal."""
    lines = []
    for model in dict.fromkeys(row.model for row in table.rows):
        rows = [row for row in table.rows if row.model == model]
        first = rows[0]
        for other in rows[1:]:
            equal = "equal" if other.sha256 == first.sha256 else "different"
            lines.append(
                f"- {model}: {other.route} takes {other.wall_s / first.wall_s:.1f} times as long as {first.route} and "
                f"{other.peak_rss_bytes / first.peak_rss_bytes:.1f} times its memory; the files are {equal}."
            )
    return [*lines, *_slopes(table)]


def _slopes(table: CompilationTable) -> list[str]:
    """Seconds a further layer takes, from one size to the next."""
    lines = []
    for route in dict.fromkeys(row.route for row in table.rows):
        rows = [row for row in table.rows if row.route == route and row.num_layers]
        steps = [
            f"{(b.wall_s - a.wall_s) / (b.num_layers - a.num_layers):.2f} s from {a.num_layers} to {b.num_layers}"
            for a, b in zip(rows, rows[1:], strict=False)
        ]
        if steps:
            lines.append(f"- A further layer by {route}: {', '.join(steps)}.")
    return lines


def plot(path: Path, table: CompilationTable) -> None:
    """Write a PNG: seconds and peak memory against layers, a line each route."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(9, 3.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for route in dict.fromkeys(row.route for row in table.rows):
        rows = [row for row in table.rows if row.route == route]
        layers = [row.num_layers for row in rows]
        left.plot(layers, [row.wall_s for row in rows], marker="o", label=route)
        right.plot(layers, [row.peak_rss_bytes / 1e6 for row in rows], marker="o", label=route)
    left.set(xlabel="layers", ylabel="seconds, whole process", yscale="log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    left.yaxis.set_minor_formatter(NullFormatter())
    right.set(xlabel="layers", ylabel="peak memory, MB", ylim=(0, None))
    left.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomic(path, buffer.getvalue())
