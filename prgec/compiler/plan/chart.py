"""Draw memory against context length for every way to train one model, with the budget as a line."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from prgec.compiler.plan.memory import memory_of
from prgec.compiler.plan.options import METHODS
from prgec.compiler.plan.others import OTHER_WAYS
from prgec.compiler.plan.plan import Plan
from prgec.compiler.plan.units import bytes_text
from prgec.core.machine.files import write_atomic

_SHORTEST, _LONGEST = 64, 32768
# Ours in the colours of a run's page, what a user would do instead in grey.
_COLORS = {"exact": "#c4622d", "shortcut": "#2f8566", "prge": "#2f5d8a", "side": "#7a5fa0"}
_GREYS = ("#444444", "#777777", "#999999", "#bbbbbb")
_PAPER_COLOR = "#8a2f6b"


def curves(plan: Plan) -> dict[str, list[tuple[int, float]]]:
    """Return memory in bytes at lengths of powers of two, by the name of a way to train.

    All have the rows of the choice: its B for gradients, and of prge its q too.
    """
    work, shape = plan.choice.row.work, plan.shape
    lengths = [_SHORTEST << power for power in range((_LONGEST // _SHORTEST).bit_length())]
    ways: dict[str, Callable[[int], float]] = {}
    for method in METHODS:
        same = replace(work, method=method, layers="all", prefix="none")
        name = f"prgec {method}, {work.quantize}"
        ways[name] = lambda tokens, same=same: float(  # type: ignore[misc]
            memory_of(shape, replace(same, seq_len=tokens), driver=plan.options.driver).total
        )
    for name, needed in OTHER_WAYS.items():
        ways[name] = functools.partial(needed, shape, work.batch_size)
    return {name: [(tokens, needed(tokens)) for tokens in lengths] for name, needed in ways.items()}


def plot_plan(path: Path, plan: Plan) -> None:
    """Write a PNG."""
    write_atomic(path, chart_png(plan))


def chart_png(plan: Plan) -> bytes:
    """Draw a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    greys = iter(_GREYS)
    for name, points in curves(plan).items():
        method = name.removeprefix("prgec ").partition(",")[0]
        is_ours, is_paper = method in _COLORS, "paper" in name
        color = _COLORS[method] if is_ours else _PAPER_COLOR if is_paper else next(greys)
        style = "-" if is_ours else "--" if not is_paper else "-." if "MeZO" in name else ":"
        lengths, sizes = zip(*points, strict=True)
        axes.plot(
            lengths, [size / 1e9 for size in sizes], style, color=color, label=name, linewidth=2 if is_ours else 1.3
        )
    budget = plan.options.memory
    axes.axhline(budget / 1e9, color="black", linewidth=0.8)
    axes.annotate(bytes_text(budget), (_SHORTEST, budget / 1e9), textcoords="offset points", xytext=(2, 3))
    work = plan.choice.row.work
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_yscale("log")
    title = f"{plan.shape.name}: memory of training, B = {work.batch_size}, q = {work.q} for prge"
    axes.set(xlabel="tokens a row", ylabel="GB", title=title)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
