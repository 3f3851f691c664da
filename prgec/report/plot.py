"""Draw a run: training loss, its running mean, and what evaluations measured."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prgec.machine.files import write_atomic

# A running mean over this share of the run shows the trend under zeroth-order noise.
_SMOOTHING_SHARE = 0.05


def plot_run(
    path: Path, losses: Sequence[float], evaluations: Sequence[tuple[int, float, float | None]], title: str
) -> None:
    """Write a PNG.

    Args:
        path: The file.
        losses: Training loss of each step.
        evaluations: (steps done, loss, accuracy or None) of each evaluation.
        title: Line above the chart.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = np.arange(1, len(losses) + 1)
    window = max(1, round(_SMOOTHING_SHARE * len(losses)))
    losses = _without_gaps(losses)
    axes.plot(steps, losses, color="tab:blue", alpha=0.25, linewidth=0.8, label="training loss")
    axes.plot(steps[window - 1 :], _running_mean(losses, window), color="tab:blue", label=f"mean of {window} steps")
    if evaluations:
        eval_steps, eval_losses, _ = zip(*evaluations, strict=True)
        axes.plot(eval_steps, eval_losses, "o-", color="tab:orange", label="evaluation loss")
    axes.set(xlabel="step", ylabel="loss", title=title)
    handles, labels = axes.get_legend_handles_labels()
    scored = [(step, accuracy) for step, _, accuracy in evaluations if accuracy is not None]
    if scored:
        right = axes.twinx()
        right.plot([s for s, _ in scored], [a for _, a in scored], "s--", color="tab:green", label="accuracy")
        right.set(ylabel="accuracy", ylim=(0.0, 1.02))
        more_handles, more_labels = right.get_legend_handles_labels()
        handles, labels = handles + more_handles, labels + more_labels
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomic(path, buffer.getvalue())


def _without_gaps(losses: Sequence[float]) -> Sequence[float]:
    """Give steps that were skipped, whose losses are no numbers, the loss of the step before."""
    filled: list[float] = []
    for loss in losses:
        filled.append(loss if math.isfinite(loss) else filled[-1] if filled else 0.0)
    return filled


def _running_mean(values: Sequence[float], window: int) -> Sequence[float]:
    kernel = np.full(window, 1.0 / window)
    smooth: Sequence[float] = np.convolve(np.asarray(values), kernel, mode="valid").tolist() if values else []
    return smooth
