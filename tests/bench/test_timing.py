"""Variants take turns, and are compared round by round."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from prgec.lab.bench.timing import interleave, median_s, ratio_of


class Machine:
    """A clock that steps move forward, and the order they ran in."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ran: list[str] = []

    def step(self, name: str, cost_s: float) -> Callable[[], None]:
        return partial(self._run, name, cost_s)

    def _run(self, name: str, cost_s: float) -> None:
        self.ran.append(name)
        self.now_s += cost_s

    def clock(self) -> float:
        return self.now_s


def _interleave(machine: Machine, costs: dict[str, float], repeats: int, **options: object) -> dict:
    steps = {name: machine.step(name, cost) for name, cost in costs.items()}
    return interleave(steps, repeats, clock=machine.clock, settle_s=0.0, **options)


def test_variants_take_turns_after_one_warm_up_each() -> None:
    machine = Machine()
    seconds = _interleave(machine, {"a": 1.0, "b": 2.0, "c": 4.0}, repeats=3)
    assert "".join(machine.ran) == "abc" * 4
    assert seconds == {
        "a": dict.fromkeys(range(3), 1.0),
        "b": dict.fromkeys(range(3), 2.0),
        "c": dict.fromkeys(range(3), 4.0),
    }


def test_a_slow_variant_sits_out_some_rounds_evenly() -> None:
    machine = Machine()
    seconds = _interleave(machine, {"a": 1.0, "slow": 10.0}, repeats=12, reducible=["slow"], budget_s=40.0)
    assert sorted(seconds["slow"]) == [2, 5, 8, 11]
    assert len(seconds["a"]) == 12


@pytest.mark.parametrize(("budget_s", "expected"), [(120.0, 12), (1.0, 3)])
def test_enough_rounds_remain(budget_s: float, expected: int) -> None:
    seconds = _interleave(Machine(), {"a": 1.0, "slow": 10.0}, repeats=12, reducible=["slow"], budget_s=budget_s)
    assert len(seconds["slow"]) == expected


def test_fewer_repeats_than_the_fewest_rounds() -> None:
    seconds = _interleave(Machine(), {"slow": 10.0}, repeats=2, reducible=["slow"], budget_s=1.0)
    assert len(seconds["slow"]) == 2


def test_ratios_pair_rounds() -> None:
    # The second half of the run is ten times slower for both: medians of times would say otherwise.
    a = {0: 2.0, 1: 2.0, 2: 20.0, 3: 20.0, 4: 20.0}
    b = {0: 1.0, 1: 1.0, 2: 10.0, 3: 10.0, 4: 5.0}
    found = ratio_of(a, b)
    assert (found.median, found.low, found.high, found.rounds) == (2.0, 2.0, 2.0, 5)
    assert median_s(a) == 20.0


def test_ratios_use_the_rounds_both_took_part_in() -> None:
    found = ratio_of({1: 3.0}, {0: 1.0, 1: 2.0, 2: 1.0})
    assert (found.median, found.low, found.high, found.rounds) == (1.5, 1.5, 1.5, 1)
