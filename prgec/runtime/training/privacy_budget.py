"""The price of privacy: how much noise a budget needs, for rows that are used several times.

A step adds Gaussian noise to a sum in which a row has a bounded share. Steps that do not use a row cost it nothing, and
k steps that use it cost exactly what one step with 1/sqrt(k) of the noise does (Dong, Roth and Su, "Gaussian
Differential Privacy", arXiv 1905.02383, section 3). Nothing is gained from the choice of rows by chance: batches are
parts of a shuffled epoch, and the usual theorems want batches drawn independently.

Neighbouring data differ in one row, which has no share in one of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from prgec.errors import UsageError

logger = logging.getLogger(__name__)

# Budgets above it hide nothing that anyone measures, and their formula leaves the range of numbers.
MAX_EPSILON = 100.0
_STEPS_OF_SEARCH = 200


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget:
    """The budget of a run, and the noise that keeps it.

    Attributes:
        epsilon: The budget.
        delta: The chance that it does not hold.
        visits: Times that the run uses a row at most.
        noise_multiplier: Standard deviation of the noise, in bounds of a row's share.
    """

    epsilon: float
    delta: float
    visits: int
    noise_multiplier: float

    @classmethod
    def of_run(cls, *, epsilon: float, delta: float, steps: int, batch_size: int, num_rows: int) -> PrivacyBudget:
        """Return the budget of a run of so many steps over so many rows.

        Raises:
            UsageError: If the budget is above `MAX_EPSILON`.
        """
        if delta * num_rows >= 1:
            logger.warning("--dp-delta %g lets one of %d rows be known: take a smaller one", delta, num_rows)
        visits = num_visits(steps, batch_size, num_rows)
        noise = noise_for(epsilon, delta, visits)
        return cls(epsilon=epsilon, delta=delta, visits=visits, noise_multiplier=noise)

    def describe(self) -> str:
        """Return one line for people."""
        times = "once" if self.visits == 1 else f"up to {self.visits} times"
        return (
            f"private: epsilon {self.epsilon:g} at delta {self.delta:g} for rows used {times}, "
            f"by noise of {self.noise_multiplier:.3g} times a row's share"
        )


def num_visits(steps: int, batch_size: int, num_rows: int) -> int:
    """Return how often a run uses a row at most: its epochs, begun ones included."""
    return math.ceil(steps * batch_size / num_rows)


def delta_of(noise_multiplier: float, epsilon: float, visits: int = 1) -> float:
    """Return the chance that a budget does not hold.

    Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", arXiv 1805.06530, theorem 8.

    Args:
        noise_multiplier: Standard deviation of the noise, in bounds of a share.
        epsilon: The budget.
        visits: Times that a row is used.
    """
    mu = math.sqrt(visits) / noise_multiplier
    first, second = _normal(mu / 2 - epsilon / mu), _normal(-mu / 2 - epsilon / mu)
    # The product would leave the range of numbers before it becomes small.
    return first - (math.exp(epsilon + math.log(second)) if second > 0 else 0.0)


def noise_for(epsilon: float, delta: float, visits: int) -> float:
    """Return the noise multiplier that keeps a budget.

    Args:
        epsilon: The budget, above 0.
        delta: The chance that it does not hold.
        visits: Times that a row is used, 1 or more.

    Raises:
        UsageError: If the budget is above `MAX_EPSILON`.

    Example:
        >>> round(noise_for(1.0, 1e-5, 1), 3)
        3.731
    """
    if epsilon > MAX_EPSILON:
        raise UsageError(f"--dp-epsilon is {epsilon:g}; expected {MAX_EPSILON:g} or less")
    low, high = 1e-3, 1e-3
    while delta_of(high, epsilon, visits) > delta:
        low, high = high, 2 * high
    return _least(lambda noise: delta_of(noise, epsilon, visits) <= delta, low, high)


def _least(is_enough: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least number from `low` to `high` that is enough, as `high` is."""
    for _ in range(_STEPS_OF_SEARCH):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _normal(x: float) -> float:
    """Return the distribution function of the standard normal distribution."""
    return 0.5 * math.erfc(-x / math.sqrt(2))
