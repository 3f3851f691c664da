"""Line charts as SVG that inherits its colours from the page around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from prgec.runtime.report.curves import Chart, Curve
from prgec.runtime.report.templates import render

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 260, 62, 16, 14, 34
_WIDE, _NARROW = 1040, 510
# A pixel shows no more than this many points of a line; the others cost bytes alone.
_POINTS_PER_PIXEL = 2
_NUM_TICKS = 5


@dataclass(frozen=True)
class _Frame:
    """Where values lie on the paper.

    Attributes:
        width: Width of the paper.
        x: Lowest and highest position.
        y: Lowest and highest value.
    """

    width: int
    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, x: float) -> float:
        """Return how far from the left a position is."""
        share = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        return round(_LEFT + share * (self.width - _LEFT - _RIGHT), 1)

    def down(self, y: float) -> float:
        """Return how far from the top a value is; what is out of range lies on its border."""
        share = (min(max(y, self.y[0]), self.y[1]) - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)


def draw(chart: Chart) -> Markup:
    """Return a figure with a legend, light grid and few ticks."""
    lines = [line for line in chart.lines if len(line.xs)]
    xs = min(min(line.xs) for line in lines), max(max(line.xs) for line in lines)
    y_ticks = _ticks(*_range(lines))
    frame = _Frame(_WIDE if chart.is_wide else _NARROW, xs, (y_ticks[0], y_ticks[-1]))
    return render(
        "chart.svg.jinja",
        chart=Chart(chart.title, tuple(lines), chart.is_wide),
        width=frame.width,
        height=_HEIGHT,
        left=_LEFT,
        right=frame.width - _RIGHT,
        x_ticks=[(frame.across(x), _label(x)) for x in _ticks(*xs, integers=True) if xs[0] <= x <= xs[1]],
        y_ticks=[(frame.down(y), _label(y)) for y in y_ticks],
        lines=[(line, _points(line, frame)) for line in lines],
    )


def _points(line: Curve, frame: _Frame) -> list[tuple[float, float, str]]:
    """Return places on the paper, each with the text for a reader who points at it."""
    stride = 1 if line.dots else max(1, len(line.xs) // (_POINTS_PER_PIXEL * frame.width))
    pairs = list(zip(line.xs, line.ys, strict=True))[::stride]
    return [(frame.across(x), frame.down(y), f"step {x:g}: {y:.4g}") for x, y in pairs]


def _range(lines: Sequence[Curve]) -> tuple[float, float]:
    """Return the span to show: all of every line, but of a faint one only its middle 98 %."""
    lows, highs = [], []
    for line in lines:
        ordered = sorted(line.ys)
        cut = len(ordered) // 100 if line.style == "faint" and len(lines) > 1 else 0
        lows.append(ordered[cut])
        highs.append(ordered[-1 - cut])
    return min(lows), max(highs)


def _ticks(low: float, high: float, *, integers: bool = False) -> list[float]:
    """Return round values that enclose [low, high]."""
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - (abs(low) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1
    raw = (high - low) / _NUM_TICKS
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw)
    if integers:
        step = max(1.0, float(round(step)))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _label(value: float) -> str:
    return f"{round(value, 12):g}" if abs(value) < 1e4 else f"{value:,.0f}"
