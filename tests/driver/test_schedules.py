"""Schedules start at 1, never rise, and end where they say."""

from __future__ import annotations

import pytest

from prgec.driver.schedules import DEFAULT_SCHEDULE, SCHEDULES, find_schedule
from prgec.errors import UsageError


@pytest.mark.parametrize(("name", "half", "end"), [("constant", 1.0, 1.0), ("linear", 0.5, 0.0), ("cosine", 0.5, 0.0)])
def test_course(name: str, half: float, end: float) -> None:
    schedule = find_schedule(name)
    factors = [schedule(progress / 100) for progress in range(101)]
    assert factors[0] == 1.0
    assert factors[50] == pytest.approx(half)
    assert factors[100] == pytest.approx(end)
    assert factors == sorted(factors, reverse=True)


def test_table() -> None:
    assert DEFAULT_SCHEDULE in SCHEDULES
    with pytest.raises(UsageError, match="unknown schedule 'step'.*known: constant, linear, cosine"):
        find_schedule("step")
