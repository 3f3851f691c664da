"""The curves of a run, for whatever draws them: the page (`chart`) and the picture (`plot`).

Letters: q queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

# A running mean over this share of the run shows the trend under zeroth-order noise.
SMOOTHING_SHARE = 0.05
# Steps done, loss, and accuracy where the task has one.
Score: TypeAlias = tuple[int, float, float | None]


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes:
        name: For the legend.
        xs: Positions.
        ys: Values.
        style: Which of the palette's colours: `one`, `two`, `three`, `faint`, or `s1` to `s8`, maybe with `dashes`.
        dots: Whether every value gets a dot.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: str
    dots: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over the same steps.

    Attributes:
        title: Title of the chart.
        lines: The lines.
        is_wide: Whether the chart takes the whole width of a page.
    """

    title: str
    lines: tuple[Curve, ...]
    is_wide: bool = False


def loss_chart(losses: Sequence[float | None], scores: Sequence[Score]) -> Chart:
    """Return training and evaluation losses; the first training loss is that of step 1."""
    steps = range(1, 1 + len(losses))
    filled = _without_gaps(losses)
    lines = [Curve("each step", steps, filled, "faint"), _smoothed("", steps, filled, "one")]
    if scores:
        lines.append(Curve("evaluation", [step for step, _, _ in scores], [loss for _, loss, _ in scores], "two", True))
    return Chart("Loss", tuple(lines), is_wide=True)


def accuracy_chart(scores: Sequence[Score]) -> Chart | None:
    """Return accuracy on evaluation data in percent; None for an open-ended task."""
    scored = [(step, 100 * accuracy) for step, _, accuracy in scores if accuracy is not None]
    if not scored:
        return None
    line = Curve("evaluation", [step for step, _ in scored], [percent for _, percent in scored], "three", dots=True)
    return Chart("Accuracy, %", (line,))


def gradient_chart(steps: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Return size and mean of the coefficients of each step; None where steps estimate no gradient."""
    estimated = [step for step in steps if step.get("g")]
    if not estimated:
        return None
    numbers = [step["step"] for step in estimated]
    mean = [sum(step["g"]) / len(step["g"]) for step in estimated]
    size = [(sum(g * g for g in step["g"]) / len(step["g"])) ** 0.5 for step in estimated]
    return Chart(
        "Projected gradient g",
        (
            Curve("size: root mean square over queries", numbers, size, "faint"),
            _smoothed("size, ", numbers, size, "one"),
            _smoothed("mean over queries, ", numbers, mean, "two"),
        ),
    )


def rate_chart(steps: Sequence[Mapping[str, Any]]) -> Chart:
    """Return the learning rate of each step."""
    return Chart(
        "Learning rate", (Curve("lr", [each["step"] for each in steps], [each["lr"] for each in steps], "three"),)
    )


def speed_chart(steps: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Return steps a second over a window; None where too few were timed."""
    window = _window(len(steps))
    timed = [step for step in steps if step.get("seconds") is not None]
    pairs = zip(timed, timed[window:], strict=False)
    spans = [(late["step"], late["seconds"] - early["seconds"]) for early, late in pairs]
    points = [(step, window / span) for step, span in spans if span > 0]
    if len(points) < 2:
        return None
    line = Curve(f"over {window} steps", [step for step, _ in points], [speed for _, speed in points], "one")
    return Chart("Steps a second, evaluations included", (line,))


def running_mean(steps: Sequence[int], values: Sequence[float]) -> tuple[Sequence[int], Sequence[float]]:
    """Return the trend of values that are noisy, and the steps it is at."""
    window = _window(len(values))
    return steps[window - 1 :], _running_mean(values, window)


def _smoothed(name: str, steps: Sequence[int], values: Sequence[float], style: str) -> Curve:
    window = _window(len(values))
    return Curve(f"{name}mean of {window} steps", steps[window - 1 :], _running_mean(values, window), style)


def _window(num_steps: int) -> int:
    return max(1, round(SMOOTHING_SHARE * num_steps))


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    total, means = sum(values[:window]), []
    for index in range(window, len(values) + 1):
        means.append(total / window)
        if index < len(values):
            total += values[index] - values[index - window]
    return means


def is_number(value: float | None) -> bool:
    """Whether a value has a place on a chart."""
    return value is not None and math.isfinite(value)


def _without_gaps(losses: Sequence[float | None]) -> list[float]:
    """Give steps that were skipped, whose losses are not numbers, the loss of the step before."""
    filled: list[float] = []
    for loss in losses:
        filled.append(loss if loss is not None and math.isfinite(loss) else filled[-1] if filled else 0.0)
    return filled
