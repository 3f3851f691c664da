"""Times variants against each other on a machine that is never quiet: they take turns, step by step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

Step = Callable[[], None]
# Fewer would leave no median to speak of.
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class Ratio:
    """How much longer one variant takes than another, from steps that ran next to each other.

    Attributes:
        median: Median of the ratios of all rounds that both took part in.
        low: First quartile of these ratios.
        high: Third quartile.
        rounds: Number of these rounds.
    """

    median: float
    low: float
    high: float
    rounds: int


def interleave(
    steps: Mapping[str, Step],
    repeats: int,
    reducible: Collection[str] = (),
    budget_s: float = 60.0,
    clock: Callable[[], float] = time.perf_counter,
    settle_s: float = 0.02,
) -> dict[str, dict[int, float]]:
    """Run all steps round-robin and time each one.

    Args:
        steps: Step of each variant, in the order they take turns. Each runs once before the first round.
        repeats: Number of rounds.
        reducible: Variants that sit out some rounds, evenly spread, when all of them would take over `budget_s`.
        budget_s: Seconds a reducible variant may take.
        clock: Seconds of some clock.
        settle_s: Pause before each step: worker threads of PyTorch and of the runtime spin for a while after their
            work, and would take cores from the variant whose turn it is.

    Returns:
        Seconds by round, for each variant.
    """
    warm = {name: _timed(step, clock) for name, step in steps.items()}
    wanted = {name: repeats for name in steps}
    for name in reducible:
        if name in steps and warm[name] * repeats > budget_s:
            wanted[name] = min(repeats, max(FEWEST_ROUNDS, int(budget_s / warm[name])))
    seconds: dict[str, dict[int, float]] = {name: {} for name in steps}
    for round_number in range(repeats):
        for name, step in steps.items():
            share = wanted[name]
            if (round_number + 1) * share // repeats > round_number * share // repeats:
                time.sleep(settle_s)
                seconds[name][round_number] = _timed(step, clock)
    return seconds


def median_s(seconds: Mapping[int, float]) -> float:
    """Median over rounds."""
    return statistics.median(seconds.values())


def ratio_of(seconds: Mapping[int, float], reference: Mapping[int, float]) -> Ratio:
    """Compare two variants round by round."""
    ratios = [seconds[index] / reference[index] for index in sorted(seconds.keys() & reference.keys())]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return Ratio(median, low, high, len(ratios))


def _timed(step: Step, clock: Callable[[], float]) -> float:
    started = clock()
    step()
    return clock() - started
