"""Draw a run as a picture: training loss, its running mean, and what evaluations measured."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prgec.core.machine.files import write_atomic
from prgec.runtime.report.curves import Chart, Score, accuracy_chart, loss_chart

# Those of the page on light ground (report.css).
_COLORS = {"one": "#2f5d8a", "two": "#c4622d", "three": "#2f8566", "faint": "#9db4ca"}


def plot_run(path: Path, losses: Sequence[float], scores: Sequence[Score], title: str) -> None:
    """Write a PNG.

    Args:
        path: The file.
        losses: Training loss of each step.
        scores: Results of evaluations.
        title: Line above the chart.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw(axes, loss_chart(losses, scores))
    axes.set(xlabel="step", ylabel="loss", title=title)
    handles, labels = axes.get_legend_handles_labels()
    accuracy = accuracy_chart(scores)
    if accuracy is not None:
        right = axes.twinx()
        _draw(right, accuracy)
        right.set(ylabel="accuracy, %", ylim=(0.0, 102.0))
        handles, labels = handles + right.get_legend_handles_labels()[0], [*labels, "accuracy"]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomic(path, buffer.getvalue())


def _draw(axes: Any, chart: Chart) -> None:
    for line in chart.lines:
        look = {"linewidth": 0.8, "alpha": 0.6} if line.style == "faint" else {"linewidth": 1.6}
        marks = {"marker": "o", "linestyle": "--", "markerfacecolor": "white"} if line.dots else {}
        axes.plot(line.xs, line.ys, color=_COLORS[line.style], label=line.name, **look, **marks)
