"""The table of gradient estimators: what turns the 2q losses of a step into the q coefficients fed back.

Policy of the host, over an unchanged graph: the program computes `M <- M - lr/q * sum_i g_i z_i` for whatever g it is
given. To add an estimator, add a class with defaults and a row to `ESTIMATORS`. An estimator may remember earlier
steps; it sees every step of a run once and in order, those of a resumed run's journal included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from prgec.core.contract.sums import ordered_mean, ordered_sum
from prgec.errors import UsageError

Float64Array: TypeAlias = npt.NDArray[np.float64]


class Estimator(Protocol):
    """Maps losses to the coefficients of the update."""

    def coefficients(self, loss_plus_q: Float64Array, loss_minus_q: Float64Array, eps: float) -> Float64Array:
        """Return g: f64[q], from the mean losses of each query under +eps and -eps: f64[q] each."""

    def remark(self, q: int) -> str | None:
        """Return what a user with q queries should know, or None."""


@dataclass(frozen=True)
class Plain:
    """The two-sided projected gradient, `g_i = (loss_i+ - loss_i-) / (2 eps)` (P-RGE, Algorithm 1, line 11)."""

    def coefficients(self, loss_plus_q: Float64Array, loss_minus_q: Float64Array, eps: float) -> Float64Array:
        """Return the projected gradients: f64[q]."""
        return (loss_plus_q - loss_minus_q) / (2.0 * eps)

    def remark(self, q: int) -> str | None:
        """Return None: it is the reference."""
        return None


@dataclass(frozen=True)
class Std:
    """Projected gradients divided by their spread over the queries, so that lr means the same on any loss scale.

    The spread is close to the norm of the gradient (Ye and Luo, "Why Does Adaptive Zeroth-Order Optimization Work?",
    arXiv 2602.01627, who divide by the deviation of the losses); floor and cap are ours.

    Attributes:
        floor: Added to the standard deviation. Without it a flat start, where all g are rounding noise, takes steps
            of full length in random directions.
        cap: Bound on |g_i|: queries that agree (spread near zero) would otherwise take one huge step.
    """

    floor: float = 1e-2
    cap: float = 4.0

    def coefficients(self, loss_plus_q: Float64Array, loss_minus_q: Float64Array, eps: float) -> Float64Array:
        """Return normalised, capped projected gradients: f64[q]; with one query, capped ones."""
        g_q = Plain().coefficients(loss_plus_q, loss_minus_q, eps)
        if g_q.size > 1:
            deviation_q = g_q - ordered_mean(g_q)
            variance = ordered_sum(deviation_q * deviation_q) / (g_q.size - 1)
            g_q = g_q / (np.sqrt(variance) + self.floor)
        return np.clip(g_q, -self.cap, self.cap)

    def remark(self, q: int) -> str | None:
        """Say that one query has no spread to divide by."""
        return "estimator std needs q > 1 to normalise: with q = 1 it only caps the gradient" if q == 1 else None


@dataclass
class Norm:
    """Projected gradients scaled so that steps have one length: each weight moves by lr a step in root mean square.

    sqrt(q) g_i / (r + floor), with r^2 a running mean of the squares of all g_i, corrected for its start at zero. The
    update lr/q sum_i g_i z_i of D weights then has length lr sqrt(D), whatever q and the scale of the loss, and less
    where the gradient is smaller than of late. g_i is odd in z_i, so its mean over draws of z_i is zero and r estimates
    the norm of the gradient: Adam's scale kept as one number, as in MEAZO (Dbouk, Gazagnadou, Reisser and Louizos, "On
    Adaptivity in Zeroth-Order Optimization", arXiv 2605.03869), but from every g_i instead of their mean.
    With decay = 0 it is normalised gradient descent (Hazan, Levy and Shalev-Shwartz, arXiv 1507.02030) by random
    directions. The combination is ours. It needs no cap, for |g_i| < q / sqrt(1 - decay).

    Attributes:
        decay: Share of the mean that survives a step.
        floor: Added to r. Without it a flat start, where all g are rounding noise, takes steps of full length.
    """

    decay: float = 0.99
    floor: float = 1e-2
    _moment: float = field(default=0.0, init=False)
    # decay to the power of the steps; multiplied, because `pow` differs between C libraries.
    _rest: float = field(default=1.0, init=False)

    def coefficients(self, loss_plus_q: Float64Array, loss_minus_q: Float64Array, eps: float) -> Float64Array:
        """Return the scaled projected gradients, f64[q], and remember this step."""
        g_q = Plain().coefficients(loss_plus_q, loss_minus_q, eps)
        self._rest *= self.decay
        self._moment = self.decay * self._moment + (1.0 - self.decay) * float(ordered_mean(g_q * g_q))
        scale = np.sqrt(float(g_q.size)) / (np.sqrt(self._moment / (1.0 - self._rest)) + self.floor)
        scaled_q: Float64Array = g_q * scale
        return scaled_q

    def remark(self, q: int) -> str | None:
        """Return None: it works for any q."""
        return None


ESTIMATORS: dict[str, Callable[[], Estimator]] = {"plain": Plain, "norm": Norm, "std": Std}
# Rows whose steps have one length, whatever the number of queries.
OF_ONE_LENGTH = ("norm",)
# docs/decisions/010-default-estimator.md: at one lr for all tasks it is ahead of the others with an lr tuned for each.
DEFAULT_ESTIMATOR = "norm"


def find_estimator(name: str) -> Estimator:
    """Return a new estimator of that name.

    Raises:
        UsageError: If the table has no such estimator.
    """
    if name not in ESTIMATORS:
        raise UsageError(f"unknown estimator {name!r}", hint=f"known: {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]()
