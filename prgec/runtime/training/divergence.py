"""Detects when training makes things worse for good: the mean loss of a window against that of the first window."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from prgec.errors import NumericsError


class Divergence:
    """Observes every training loss in order.

    Losses that are not finite belong to steps that were skipped, and count for nothing; a window of nothing else has
    diverged.

    Args:
        factor: How many times the start's a window's mean loss may be; 0 never ends a run.
        window: Steps in a window.

    Attributes:
        best_step: Last step of the window with the lowest mean so far, None before the first is full.
        is_over: Whether training has diverged.
    """

    def __init__(self, factor: float, window: int) -> None:
        self._factor = factor
        self._recent: deque[float] = deque(maxlen=window)
        self._start: float | None = None
        self._best = math.inf
        self._step = 0
        self.best_step: int | None = None
        self.is_over = False

    def hear(self, loss: float) -> None:
        """Take note of the next step's loss.

        Raises:
            NumericsError: If training has diverged.
        """
        self._step += 1
        self._recent.append(loss)
        if not self._factor or len(self._recent) < (self._recent.maxlen or 0):
            return
        mean = _finite_mean(self._recent)
        if self._start is None:
            self._start = mean
        if mean < self._best:
            self._best, self.best_step = mean, self._step
        if not mean <= self._factor * self._start:
            self.is_over = True
            raise NumericsError(
                f"training diverged: the mean loss of {len(self._recent)} steps was {self._start:.4g} at the start and "
                f"is {mean:.4g} at step {self._step}",
                hint="lower --lr or --eps",
            )


def _finite_mean(losses: Iterable[float]) -> float:
    """Return the mean of the finite losses, summed in order; infinity where there are none."""
    total, count = 0.0, 0
    for loss in losses:
        if math.isfinite(loss):
            total, count = total + loss, count + 1
    return total / count if count else math.inf
