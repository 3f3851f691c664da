"""Accuracy against memory, a panel a study and a dot a method."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from board.scores import Score
from prgec.core.machine.files import write_atomic
from prgec.lab.study.spec import Study

# PyTorch's own methods are grey, prgec's are blue.
_COLOURS = {False: "tab:blue", True: "tab:gray"}
_COLUMNS = 3


def plot(path: Path, studies: Mapping[str, Study], found: Mapping[str, Sequence[Score]]) -> None:
    """Draw accuracy against memory, a panel a study and a dot a method."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, max(1, len(found)))
    rows = max(1, math.ceil(len(found) / columns))
    figure = Figure(figsize=(5.2 * columns, 4.0 * rows), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (name, scores) in zip(panels, found.items(), strict=False):
        _draw(axes, scores)
        axes.set_title(textwrap.fill(studies[name].title, 48), fontsize=10)
    for axes in panels[len(found) :]:
        axes.remove()
    # Places on the picture are known once it has been laid out.
    figure.draw_without_rendering()
    for axes in figure.axes:
        _part_names(axes)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomic(path, buffer.getvalue())


def _draw(axes: Any, scores: Sequence[Score]) -> None:
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    most = max((len(score.by_task) for score in scores), default=0)
    drawn = [score for score in scores if score.memory_mb is not None and len(score.by_task) == most]
    for score in drawn:
        place = (score.memory_mb, 100 * score.accuracy)
        axes.plot(*place, "o", color=_COLOURS[score.is_baseline])
        axes.annotate(score.method, place, (4, -10), textcoords="offset points", color=_COLOURS[score.is_baseline])
    axes.set(xscale="log", xlabel="MB besides the weights", ylabel="accuracy on test, %")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(y=0.15)
    # Names stand to the right of their dots.
    sizes = [score.memory_mb for score in drawn if score.memory_mb] or [1.0]
    axes.set_xlim(min(sizes) / 2.5, 4 * max(sizes))


def _part_names(axes: Any) -> None:
    """Move names of dots that are near each other to another side, as long as there is one that is free."""
    taken = [dot.get_window_extent() for dot in axes.lines]
    for name in axes.texts:
        for x, y in ((4, -10), (4, 4), (-4, -10), (-4, 4)):
            name.set(position=(x, y), horizontalalignment="left" if x > 0 else "right")
            place = name.get_window_extent()
            if not any(place.overlaps(other) for other in taken):
                break
        else:
            name.set(position=(4, -10), horizontalalignment="left")
        taken.append(name.get_window_extent())
