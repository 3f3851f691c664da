"""Work by several threads gives what `map` gives."""

from __future__ import annotations

import itertools
import threading

import pytest

from prgec.core.data.threads import map_in_threads


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
def test_results_come_in_order(count: int) -> None:
    """However many chunks there are."""
    assert list(map_in_threads(lambda n: n * n, range(count))) == [n * n for n in range(count)]


def test_values_are_taken_a_few_ahead() -> None:
    """An endless source is not held, and threads do the work."""
    taken, threads = itertools.count(), set()

    def work(value: int) -> int:
        threads.add(threading.current_thread())
        return value

    results = map_in_threads(work, taken)
    assert list(itertools.islice(results, 100)) == list(range(100))
    assert next(taken) < 10_000 and threading.main_thread() not in threads
    results.close()  # type: ignore[attr-defined]
    assert not any(each.is_alive() for each in threads)


def test_an_error_comes_where_its_value_was() -> None:
    """Results before it come first."""
    found = []
    with pytest.raises(ZeroDivisionError):
        for each in map_in_threads(lambda n: 1 // (n - 200), range(1000)):
            found.append(each)
    assert len(found) == 200 - 200 % 64
