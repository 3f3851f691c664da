"""The choice of what to compute again, against every choice there is."""

from __future__ import annotations

import itertools
import random

import pytest

from prgec.passes.recomputation import Value, values_to_recompute


def cheap(num_bytes: int, *sources: int) -> Value:
    return Value(sources, num_bytes, is_cheap=True)


def dear(num_bytes: int, *sources: int) -> Value:
    return Value(sources, num_bytes, is_cheap=False)


def free() -> Value:
    return Value((), 1000, is_cheap=False, is_free=True)


def test_what_follows_from_a_kept_value_is_computed_again() -> None:
    """An activation after a layer whose result the backward reads as well."""
    values = [dear(8), cheap(8, 0)]
    assert values_to_recompute(values, {0, 1}) == {1}


def test_what_is_on_the_way_is_computed_again() -> None:
    """Softmax of masked scores of kept queries and keys; the mask is there anyway."""
    values = [dear(2), dear(2), free(), cheap(9, 0, 1), cheap(9, 3, 2), cheap(9, 4)]
    assert values_to_recompute(values, {0, 1, 5}) == {3, 4, 5}


def test_a_smaller_source_is_kept_in_place_of_its_result() -> None:
    values = [dear(2), cheap(8, 0)]
    assert values_to_recompute(values, {1}) == {1}


@pytest.mark.parametrize("num_bytes", [7, 8])
def test_sources_as_large_are_not(num_bytes: int) -> None:
    """A sum of the stream and what a layer writes to it."""
    values = [dear(num_bytes), dear(1), cheap(8, 0, 1)]
    assert values_to_recompute(values, {2}) == set()


def test_no_layer_is_computed_again() -> None:
    values = [dear(1), dear(8, 0), cheap(8, 1)]
    assert values_to_recompute(values, {0, 1, 2}) == {2}


def test_what_is_kept_for_one_serves_another() -> None:
    """Neither alone would be worth what both are computed from."""
    values = [dear(6), cheap(4, 0), cheap(9, 0)]
    assert values_to_recompute(values, {1, 2}) == {1, 2}


@pytest.mark.parametrize("seed", range(200))
def test_nothing_smaller_where_every_value_has_one_reader(seed: int) -> None:
    values, read_late = tree(random.Random(seed))
    again = values_to_recompute(values, read_late)
    assert kept_bytes(values, read_late, again) == min(every_way(values, read_late))


@pytest.mark.parametrize("seed", range(200))
def test_never_more_than_keeping_everything(seed: int) -> None:
    rng = random.Random(seed)
    values = [
        Value(tuple(rng.sample(range(n), min(n, rng.randint(0, 2)))), rng.randint(1, 9), n > 0 and rng.random() < 0.7)
        for n in range(9)
    ]
    read_late = {n for n in range(9) if rng.random() < 0.5}
    kept = kept_bytes(values, read_late, values_to_recompute(values, read_late))
    assert kept <= sum(values[n].num_bytes for n in read_late)


def tree(rng: random.Random) -> tuple[list[Value], set[int]]:
    """Up to ten values, each of them read by one other."""
    values, unread = [], []
    for number in range(10):
        taken = [unread.pop(rng.randrange(len(unread))) for _ in range(min(len(unread), rng.randint(0, 2)))]
        values.append(Value(tuple(taken), rng.randint(1, 9), bool(taken) and rng.random() < 0.7))
        unread.append(number)
    return values, {number for number in range(10) if rng.random() < 0.4}


def kept_bytes(values: list[Value], read_late: set[int], again: set[int]) -> int:
    """Values kept where `again` is not: all that late readers and copies read."""
    assert all(values[number].is_cheap for number in again)
    kept, pending = set(), list(read_late)
    while pending:
        number = pending.pop()
        if number in again:
            pending += values[number].sources
        elif not values[number].is_free:
            kept.add(number)
    return sum(values[number].num_bytes for number in kept)


def every_way(values: list[Value], read_late: set[int]) -> list[int]:
    candidates = [number for number, value in enumerate(values) if value.is_cheap]
    ways = itertools.chain.from_iterable(
        itertools.combinations(candidates, size) for size in range(len(candidates) + 1)
    )
    return [kept_bytes(values, read_late, set(way)) for way in ways]
