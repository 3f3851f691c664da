"""Work on many values by several threads, for work that leaves Python's lock to others: tokenizers do."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")

# Values that one thread takes at once.
_CHUNK = 64


def map_in_threads(work: Callable[[Value], Result], values: Iterable[Value]) -> Iterator[Result]:
    """Yield what `map` yields, in its order and with its errors; values are taken a few ahead of their results.

    >>> list(map_in_threads(str, range(3)))
    ['0', '1', '2']
    """
    rest = iter(values)
    first = list(islice(rest, _CHUNK))
    if len(first) < _CHUNK:
        yield from map(work, first)
        return
    num_threads = os.cpu_count() or 1
    waiting: deque[Future[list[Result]]] = deque()
    pool = ThreadPoolExecutor(num_threads)
    try:
        chunk = first
        while chunk or waiting:
            if chunk:
                waiting.append(pool.submit(_map, work, chunk))
                chunk = list(islice(rest, _CHUNK))
            if not chunk or len(waiting) > 2 * num_threads:
                yield from waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _map(work: Callable[[Value], Result], values: list[Value]) -> list[Result]:
    return [work(each) for each in values]
