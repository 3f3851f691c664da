"""Divergence is a window's mean loss against the first window's."""

from __future__ import annotations

import math

import pytest

from prgec.errors import NumericsError
from prgec.runtime.training.divergence import Divergence


def _hear(divergence: Divergence, losses: list[float]) -> int:
    """Return how many losses were observed before training diverged."""
    for number, loss in enumerate(losses, start=1):
        try:
            divergence.hear(loss)
        except NumericsError:
            return number
    return 0


def test_a_rising_mean_ends_the_run() -> None:
    divergence = Divergence(2.0, 3)
    # Means: 2, 1.33, 1, 2.33, 4 (of 2 at the start), 4.33.
    assert _hear(divergence, [2, 3, 1, 0, 2, 5, 5, 3]) == 8
    assert (divergence.best_step, divergence.is_over) == (5, True)


def test_the_bound_itself_is_allowed() -> None:
    divergence = Divergence(2.0, 2)
    assert _hear(divergence, [1, 1, 3, 1, 2, 2]) == 0
    assert (divergence.best_step, divergence.is_over) == (2, False)


def test_one_bad_step_is_no_divergence() -> None:
    assert _hear(Divergence(2.0, 3), [1, 1, 1, math.nan, math.inf, 1, 1]) == 0


def test_nothing_but_bad_steps_is() -> None:
    divergence = Divergence(2.0, 3)
    assert _hear(divergence, [1, 1, 1, math.nan, math.nan, math.nan]) == 6
    assert divergence.best_step == 3


def test_a_factor_of_zero_never_ends_a_run() -> None:
    assert _hear(Divergence(0.0, 2), [1, 1, 100, 10000, math.nan, math.nan]) == 0


def test_the_message_has_the_figures() -> None:
    divergence = Divergence(1.5, 2)
    for loss in (1, 1, 1):
        divergence.hear(loss)
    with pytest.raises(NumericsError, match="mean loss of 2 steps was 1 at the start and is 3 at step 4"):
        divergence.hear(5)
