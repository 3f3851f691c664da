"""Steps whose numbers are too large or not finite are stopped, skipped or clipped, and report it."""

from __future__ import annotations

import numpy as np
import pytest

from prgec.errors import NumericsError, UsageError
from prgec.runtime.training.estimators import ESTIMATORS, Plain, find_estimator
from prgec.runtime.training.limits import Limits, coefficients, intervention

EPS = 0.5
LOSSES = np.array([[2.0, 1.0], [1.0, 4.0]])
G = np.array([1.0, -3.0], np.float32)
NAN_LOSSES = np.array([[np.nan, 1.0], [1.0, 4.0]])


def test_coefficients_are_the_estimators() -> None:
    assert coefficients(LOSSES, EPS, Plain()).tolist() == G.tolist()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(), [1.0, -3.0]),
        (Limits(max_g=3.0), [1.0, -3.0]),
        (Limits(max_g=2.0), [1.0, -2.0]),
        (Limits(max_g=0.5), [0.5, -0.5]),
        (Limits(max_g=2.0, over_limit="skip"), [0.0, 0.0]),
        (Limits(max_g=3.0, over_limit="skip"), [1.0, -3.0]),
    ],
)
def test_g_is_kept_within_the_bound(limits: Limits, expected: list[float]) -> None:
    g = limits.apply(G, LOSSES, 1)
    assert (g.dtype, g.tolist()) == (np.float32, expected)
    done = intervention(G, g)
    assert done == (None if expected == G.tolist() else "skipped" if not any(expected) else "clipped")


@pytest.mark.parametrize(("losses", "g"), [(NAN_LOSSES, G), (LOSSES, np.array([np.inf, 0], np.float32))])
def test_what_is_not_finite_stops_or_is_skipped(losses: np.ndarray, g: np.ndarray) -> None:
    with pytest.raises(NumericsError, match="of step 7 is not finite"):
        Limits().apply(g, losses, 7)
    assert Limits(not_finite="skip", max_g=1.0).apply(g, losses, 7).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_skipped_step_without_numbers_is_told(name: str) -> None:
    measured = coefficients(NAN_LOSSES, EPS, find_estimator(name))
    assert intervention(measured, np.zeros(2, np.float32)) == "skipped"


def test_flags_tell_the_policies_apart() -> None:
    policies = [(over, finite) for over in ("clip", "skip") for finite in ("stop", "skip")]
    assert [Limits(0.0, *policy).flags for policy in policies] == [0, 1, 2, 3]
    assert [Limits.of_flags(0.5, flags) for flags in range(4)] == [Limits(0.5, *policy) for policy in policies]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(max_g=-1.0), "--max-g is -1.0"),
        (Limits(max_g=float("nan")), "--max-g is nan"),
        (Limits(over_limit="drop"), "--over-limit is 'drop'; expected clip or skip"),
        (Limits(not_finite="clip"), "--not-finite is 'clip'; expected stop or skip"),
    ],
)
def test_impossible_limits_are_refused(limits: Limits, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        limits.check()
