"""Draw a benchmark: seconds a step as bars, one group a cell."""

from __future__ import annotations

import io
from pathlib import Path

from prgec.core.machine.files import write_atomic
from prgec.lab.bench.result import BenchResult

_GROUP_WIDTH = 0.8


def plot_bench(path: Path, result: BenchResult) -> None:
    """Write a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    variants = list(dict.fromkeys(row.variant for each in result.cells for row in each.rows))
    bars = len(result.cells) * len(variants)
    figure = Figure(figsize=(max(6.0, 2.0 + 0.55 * bars), 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = _GROUP_WIDTH / len(variants)
    for number, name in enumerate(variants):
        heights = [row.step_s for each in result.cells for row in each.rows if row.variant == name]
        offset = (number - (len(variants) - 1) / 2) * width
        bar = axes.bar([cell + offset for cell in range(len(heights))], heights, width, label=name)
        axes.bar_label(bar, fmt="%.3g", fontsize="x-small", padding=1)
    axes.set_xticks(range(len(result.cells)), [str(each.cell).replace(" ", "\n", 1) for each in result.cells])
    m = result.machine
    axes.set(ylabel="seconds a step", title=f"{m['model']}, {m['num_layers']} layers, {m['cores']} cores")
    figure.legend(loc="outside lower center", ncols=len(variants), fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomic(path, buffer.getvalue())
