"""A plan as text and as a page: the same cells, sentences and commands in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prgec.compiler.plan.choose import way_text
from prgec.compiler.plan.plan import Plan
from prgec.compiler.plan.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from prgec.compiler.plan.rows import PlanRow

_HEAD = ("way to train", "peak", "mapped", "s/step", "run", "file", "to compile", "kept on disk", "fits")
Cells = list[tuple[str, ...]]


def plan_lines(found: Plan, *, show_all: bool) -> list[str]:
    """The plan for a terminal."""
    lines = [f"{found.shape.name}: {budget_text(found)}", "", *aligned(way_cells(found, show_all=show_all)), ""]
    lines += [f"take {way_text(found.choice.row)}", *(f"  - {each}" for each in reasons(found)), ""]
    lines += [*(f"    {command}" for command in found.choice.commands), "", *aligned(other_cells(found)), ""]
    return [*lines, f"times are of {found.speed.origin}"]


def plan_page(found: Plan, *, show_all: bool) -> str:
    """The plan as one HTML page, with the picture."""
    from prgec.compiler.plan.chart import chart_png
    from prgec.runtime.report.plan_page import PlanPage, to_html

    page = PlanPage(
        name=found.shape.name,
        what=budget_text(found),
        choice=way_text(found.choice.row),
        reasons=reasons(found),
        commands=found.choice.commands,
        chart_png=chart_png(found),
        ways=way_cells(found, show_all=show_all),
        others=other_cells(found),
        times=found.speed.origin,
    )
    return to_html(page)


def budget_text(found: Plan) -> str:
    """The model's size, and the requested plan."""
    shape, options = found.shape, found.options
    budget = bytes_text(options.memory) + (f", {seconds_text(options.seconds)}" if options.seconds else "")
    size = f"{shape.num_weights / 1e6:.0f}M weights, {shape.layers} blocks"
    return f"{size}; {budget}; {options.steps} steps, T={options.seq_len} K={options.num_labels}"


def reasons(found: Plan) -> list[str]:
    """Why the choice, and its energy where that is known."""
    said, energy = list(found.choice.reasons), found.energy_j(found.choice.row)
    if energy is not None:
        said.append(f"{energy / 3.6e6:.3g} kWh at {found.options.watts:g} W")
    return said


def way_cells(found: Plan, *, show_all: bool) -> Cells:
    """The ways to train, below a head."""
    return [_HEAD, *map(_cells, found.rows if show_all else _best_of_groups(found.rows))]


def other_cells(found: Plan) -> Cells:
    """The alternatives of a user, and the largest models, below a head."""
    work = found.choice.row.work
    head = (f"instead, with {work.batch_size} rows of {work.seq_len} tokens", "peak", "fits", "largest that fits")
    body = [
        (row.name, bytes_text(row.peak_bytes), "yes" if row.fits else "no", row.largest or "none")
        for row in found.others
    ]
    ours = [(f"prgec {name}, 8da4w, 1 row", "", "", each or "none") for name, each in found.largest.items()]
    return [head, *body, *ours]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of a table, the first to the left and the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _cells(row: PlanRow) -> tuple[str, ...]:
    return (
        way_text(row),
        bytes_text(row.memory.total),
        bytes_text(row.mapped_bytes),
        "?" if row.step_s is None else f"{row.step_s:.3g}",
        "?" if row.run_s is None else seconds_text(row.run_s),
        bytes_text(row.file_bytes),
        bytes_text(row.compile_bytes) if row.compile_bytes else "?",
        bytes_text(row.kept_bytes) if row.kept_bytes else "-",
        "yes" if row.fits else "no",
    )


def _best_of_groups(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """For each method, choice of layers and scheme the first row that fits, else the smallest."""
    groups: dict[tuple[str, str, str], list[PlanRow]] = {}
    for row in rows:
        groups.setdefault((row.work.method, row.work.layers, row.work.quantize), []).append(row)
    return [
        next((row for row in group if row.fits), min(group, key=lambda row: row.memory.total))
        for group in groups.values()
    ]
