"""Schedules start at 1, never rise, and end where they say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prgec.errors import UsageError
from prgec.runtime.training.schedules import DEFAULT_SCHEDULE, SCHEDULES, Rates, course, find_schedule, learning_rate


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


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_warm_up_rises_then_the_schedule_runs(name: str) -> None:
    course_of_run = Rates(steps=50, lr=0.2, schedule=name, warmup=10)
    rates = [learning_rate(course_of_run, step) for step in range(1, 51)]
    assert rates[:10] == pytest.approx([0.2 * i / 11 for i in range(1, 11)])
    assert rates[10] == 0.2 == max(rates)
    schedule = find_schedule(name)
    assert rates[10:] == pytest.approx([0.2 * schedule(i / 40) for i in range(40)])


def test_course_names_the_warm_up() -> None:
    rates = Rates(steps=1000, lr=0.2, warmup=25)
    assert course(rates) == "linear+25"
    assert course(replace(rates, warmup=0)) == "linear"
