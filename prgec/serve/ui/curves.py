"""Curves of a run under way from columns of numbers, so that a long one is drawn in no time."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from prgec.runtime.report.chart import draw
from prgec.runtime.report.curves import SMOOTHING_SHARE, Chart, Curve, accuracy_chart
from prgec.runtime.report.thin import thin
from prgec.serve.ui.follow import Metrics

# More than a screen has places for.
_MOST_POINTS = 1200


def figures(metrics: Metrics) -> list[Markup]:
    """Return the charts of what is known so far."""
    return [draw(chart) for chart in charts(metrics)]


def charts(metrics: Metrics) -> list[Chart]:
    """Return loss, accuracy, learning rate and speed, those that have a point."""
    if not len(metrics.steps):
        return []
    steps, losses = np.array(metrics.steps), np.array(metrics.losses)
    rates, seconds = np.array(metrics.rates), np.array(metrics.seconds)
    window = max(1, round(SMOOTHING_SHARE * len(steps)))
    found = [_loss(steps, losses, metrics, window), accuracy_chart(metrics.scores)]
    found.append(_chart("Learning rate", "lr", "three", steps, rates))
    if len(steps) > window:
        spans = seconds[window:] - seconds[:-window]
        with np.errstate(divide="ignore", invalid="ignore"):
            speed = window / spans
        found.append(
            _chart("Steps a second, evaluations included", f"over {window} steps", "one", steps[window:], speed)
        )
    return [chart for chart in found if chart is not None]


def _loss(steps: np.ndarray, losses: np.ndarray, metrics: Metrics, window: int) -> Chart | None:
    known = np.isfinite(losses)
    if not known.any():
        return None
    steps, losses = steps[known], losses[known]
    window = min(window, len(losses))
    sums = np.cumsum(np.concatenate([[0.0], losses]))
    means = (sums[window:] - sums[:-window]) / window
    lines = [
        Curve("each step", *thin(steps, losses, _MOST_POINTS), "faint"),
        Curve(f"mean of {window} steps", *thin(steps[window - 1 :], means, _MOST_POINTS), "one"),
    ]
    if metrics.scores:
        xs, ys = [score[0] for score in metrics.scores], [score[1] for score in metrics.scores]
        lines.append(Curve("evaluation", xs, ys, "two", dots=True))
    return Chart("Loss", tuple(lines), is_wide=True)


def _chart(title: str, name: str, style: str, steps: np.ndarray, values: np.ndarray) -> Chart | None:
    known = np.isfinite(values)
    if known.sum() < 2:
        return None
    return Chart(title, (Curve(name, *thin(steps[known], values[known], _MOST_POINTS), style),))
