"""The treatment of a step whose numbers are too large or not finite: stopped, skipped or clipped.

The journal keeps the losses as measured and g as applied, so that replaying and resuming need no policy; what was done
to a step follows from the difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from prgec.errors import NumericsError, UsageError
from prgec.runtime.training.estimators import Estimator

FloatArray: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]

STOP, SKIP, CLIP = "stop", "skip", "clip"
NOT_FINITE_POLICIES = (STOP, SKIP)
OVER_LIMIT_POLICIES = (CLIP, SKIP)


@dataclass(frozen=True)
class Limits:
    """Bounds on what a step may apply.

    Attributes:
        max_g: Largest |g_i|; 0 for any.
        over_limit: `clip` brings each g_i to the bound, `skip` applies nothing of the step.
        not_finite: `stop` ends the run when a loss or g is not finite, `skip` applies nothing of the step.
    """

    max_g: float = 0.0
    over_limit: str = CLIP
    not_finite: str = STOP

    def check(self) -> None:
        """Refuse impossible values.

        Raises:
            UsageError: Naming the first option at fault.
        """
        if not (math.isfinite(self.max_g) and self.max_g >= 0):
            raise UsageError(f"--max-g is {self.max_g}; expected a finite number, 0 or more")
        for flag, value, known in (
            ("--over-limit", self.over_limit, OVER_LIMIT_POLICIES),
            ("--not-finite", self.not_finite, NOT_FINITE_POLICIES),
        ):
            if value not in known:
                raise UsageError(f"{flag} is {value!r}; expected {' or '.join(known)}")

    @property
    def flags(self) -> int:
        """The two policies as a journal's header has them."""
        return (self.not_finite == SKIP) + 2 * (self.over_limit == SKIP)

    @classmethod
    def of_flags(cls, max_g: float, flags: int) -> Limits:
        """Return the limits that a journal's header has."""
        return cls(max_g, SKIP if flags & 2 else CLIP, SKIP if flags & 1 else STOP)

    def apply(self, g_q: FloatArray, losses: Float64Array, step: int) -> FloatArray:
        """Return the coefficients the program may apply: f32[q].

        Args:
            g_q: Coefficients from the estimator: f32[q].
            losses: Losses of the step, any shape.
            step: Number of the step, for the message.

        Raises:
            NumericsError: If a number is not finite and the policy is to stop.
        """
        for values, name in ((losses, "loss"), (g_q, "projected gradient")):
            if not np.isfinite(values).all():
                if self.not_finite == SKIP:
                    return np.zeros_like(g_q)
                raise NumericsError(
                    f"the {name} of step {step} is not finite; training stopped, state kept",
                    hint="lower --lr or --eps, or go on with --not-finite skip",
                )
        bound = np.float32(self.max_g)
        if not self.max_g or (np.abs(g_q) <= bound).all():
            return g_q
        return np.clip(g_q, -bound, bound) if self.over_limit == CLIP else np.zeros_like(g_q)


def intervention(measured_q: FloatArray, applied_q: FloatArray) -> str | None:
    """Return what was done to a step, `skipped` or `clipped`, or None.

    Args:
        measured_q: Coefficients from the estimator: f32[q].
        applied_q: Coefficients given to the program: f32[q].
    """
    if np.array_equal(measured_q, applied_q):
        return None
    return "clipped" if applied_q.any() else "skipped"


def coefficients(losses: Float64Array, eps: float, estimator: Estimator) -> FloatArray:
    """Return what the estimator makes of the losses f64[q, 2] of a step: f32[q].

    An estimator never receives losses that are not finite, which it might keep; then every coefficient is NaN.
    """
    if not np.isfinite(losses).all():
        return np.full(len(losses), np.nan, dtype=np.float32)
    with np.errstate(all="ignore"):
        return estimator.coefficients(losses[:, 0], losses[:, 1], eps).astype(np.float32)
