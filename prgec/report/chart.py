"""Line charts as SVG that inherits its colours from the page around it."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 260, 62, 16, 14, 34
_WIDE, _NARROW = 1040, 510
# A pixel shows no more than this many points of a line; the others cost bytes alone.
_POINTS_PER_PIXEL = 2
_NUM_TICKS = 5


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: For the legend.
        xs: Positions.
        ys: Values.
        style: Class of the line: `one`, `two`, `three` or `faint`.
        dots: Whether every value gets a dot.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: str
    dots: bool = False


def chart(title: str, lines: Sequence[Line], *, wide: bool = False) -> str:
    """Return a figure with a legend, light grid and few ticks."""
    width = _WIDE if wide else _NARROW
    lines = [line for line in lines if len(line.xs)]
    x_ticks = _ticks(min(min(line.xs) for line in lines), max(max(line.xs) for line in lines), integers=True)
    y_ticks = _ticks(*_range(lines))
    x_low, x_high = min(min(line.xs) for line in lines), max(max(line.xs) for line in lines)
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / ((x_high - x_low) or 1)
        up = (y - y_low) / ((y_high - y_low) or 1)
        return (_LEFT + across * (width - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM))

    parts = [_grid(place, x_ticks, y_ticks, x_low, x_high, width)]
    for line in lines:
        points = [place(x, min(max(y, y_low), y_high)) for x, y in _thinned(line, width)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dotted = " dotted" if line.dots else ""
        parts.append(f"<polyline class='line {line.style}{dotted}' points='{path}'/>")
        if line.dots:
            parts += [
                f"<circle class='dot {line.style}' cx='{x:.1f}' cy='{y:.1f}' r='3'><title>"
                f"step {value_x:g}: {value_y:.4g}</title></circle>"
                for (x, y), value_x, value_y in zip(points, line.xs, line.ys, strict=True)
            ]
    legend = "".join(f"<span><i class='{line.style}'></i>{html.escape(line.name)}</span>" for line in lines)
    return (
        f"<figure class='{'wide' if wide else ''}'><figcaption>{html.escape(title)}"
        f"<span class='legend'>{legend}</span></figcaption>"
        f"<svg viewBox='0 0 {width} {_HEIGHT}' role='img' aria-label='{html.escape(title, quote=True)}'>"
        f"{''.join(parts)}</svg></figure>"
    )


def _grid(
    place: Callable[[float, float], tuple[float, float]],
    x_ticks: list[float],
    y_ticks: list[float],
    x_low: float,
    x_high: float,
    width: int,
) -> str:
    parts = []
    for tick in y_ticks:
        y = place(x_low, tick)[1]
        parts.append(
            f"<line class='grid' x1='{_LEFT}' x2='{width - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>"
            f"<text x='{_LEFT - 8}' y='{y + 4:.1f}' text-anchor='end'>{_label(tick)}</text>"
        )
    for tick in x_ticks:
        if x_low <= tick <= x_high:
            x = place(tick, y_ticks[0])[0]
            parts.append(f"<text x='{x:.1f}' y='{_HEIGHT - 12}' text-anchor='middle'>{_label(tick)}</text>")
    return "".join(parts)


def _range(lines: Sequence[Line]) -> tuple[float, float]:
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


def _thinned(line: Line, width: int) -> list[tuple[float, float]]:
    stride = 1 if line.dots else max(1, len(line.xs) // (_POINTS_PER_PIXEL * width))
    return list(zip(line.xs, line.ys, strict=True))[::stride]
