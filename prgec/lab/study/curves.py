"""Accuracy on dev against what was spent, rows of forward passes or seconds; one panel a task."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from prgec.core.machine.files import write_atomic
from prgec.lab.study.results import Point, Result, of_method
from prgec.lab.study.spec import Study

_UNITS = {"wall": "seconds of training", "cpu": "seconds of a processor"}


def plot_curves(path: Path, study: Study, results: Sequence[Result]) -> None:
    """Write a PNG: the mean over seeds of every method, and the range as a shade.

    Args:
        path: The file.
        study: The study.
        results: Runs of the chosen options.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(study.tasks), 3.6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(study.tasks), squeeze=False, sharey=True)[0]
    for axes, task in zip(panels, study.tasks, strict=True):
        for number, method in enumerate(study.methods):
            runs = [each for each in of_method(results, method.name, task.name) if not each.failure]
            if not runs:
                continue
            # Methods score at points of their own; seeds of one method at the same ones.
            points = list(zip(*(each.curve for each in runs), strict=False))
            spent = [_spent(study, column) for column in points]
            scores = [[point.accuracy for point in column] for column in points]
            color = f"C{number % 10}"
            style = "-" if number < 10 else "--"
            axes.plot(spent, [fmean(each) for each in scores], style, color=color, label=method.name)
            axes.fill_between(
                spent,
                [min(each) for each in scores],
                [max(each) for each in scores],
                color=color,
                alpha=0.12,
                linewidth=0,
            )
        axes.set(
            title=task.name, xlabel=_UNITS[study.budget.clock] if study.budget.seconds else "rows of forward passes"
        )
    panels[0].set(ylabel="accuracy on dev")
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)), fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomic(path, buffer.getvalue())


def _spent(study: Study, column: Sequence[Point]) -> float:
    """The budget spent by the runs of one method when they were scored."""
    if not study.budget.seconds:
        return column[0].forward_rows
    return fmean(each.cpu_s if study.budget.clock == "cpu" else each.wall_s for each in column)
