"""The arena of a step, as XNNPACK's planner lays it out (src/memory-planner.c, src/runtime.c).

A value lives from the operation that makes it to the last that reads it. Values get their places from the largest to
the smallest, each in the smallest gap that is large enough between those it lives beside, else after them. So gaps
stay, and the arena is larger than what is alive at the worst moment: in programs of gradients by up to some values of
the MLP's width.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from prgec.compiler.plan.op import Op

# May write their result over an input: element-wise operations, softmax and reshapes.
_IN_PLACE = frozenset({"add", "sub", "mul", "unary", "softmax", "view"})
# Smaller values than this share of what is alive find a place in some gap.
_SMALLEST_SHARE = 1 / (1 << 14)


@dataclass(frozen=True)
class Span:
    """A value of the arena.

    Attributes:
        first: Number of the operation that makes it.
        last: Number of the last that reads it.
        num_bytes: Its size.
    """

    first: int
    last: int
    num_bytes: int


def spans_of(ops: Sequence[Op]) -> list[Span]:
    """Return what lies in the arena and when: results, and scratch memory of operations.

    A value is overwritten by the element-wise operation that alone reads it, if that result too has one reader.
    """
    ops = _without_elided(ops)
    readers: list[list[int]] = [[] for _ in ops]
    for number, op in enumerate(ops):
        for source in op.inputs:
            readers[source].append(number)
    place = _places(ops, readers)
    last = list(range(len(ops)))
    for number, users in enumerate(readers):
        last[place[number]] = max(last[place[number]], number, *users)
    results = [Span(n, last[n], op.num_bytes) for n, op in enumerate(ops) if place[n] == n and _is_inside(op)]
    scratch = [Span(n, n, op.scratch_bytes) for n, op in enumerate(ops)]
    return [each for each in results + scratch if each.num_bytes]


def live_bytes(spans: Sequence[Span]) -> int:
    """The most that is alive at once."""
    changes: dict[int, int] = {}
    for each in spans:
        changes[each.first] = changes.get(each.first, 0) + each.num_bytes
        changes[each.last + 1] = changes.get(each.last + 1, 0) - each.num_bytes
    alive = peak = 0
    for number in sorted(changes):
        alive += changes[number]
        peak = max(peak, alive)
    return peak


def arena_bytes(spans: Sequence[Span]) -> int:
    """The size of the arena the planner makes for these values."""
    live = live_bytes(spans)
    end = live
    placed: list[tuple[int, int, int, int]] = []
    for each in sorted(spans, key=attrgetter("num_bytes"), reverse=True):
        if each.num_bytes < live * _SMALLEST_SHARE:
            break
        first, last = each.first, each.last
        beside = [(begin, stop) for begin, stop, other, until in placed if other <= last and first <= until]
        begin = _offset(beside, each.num_bytes)
        bisect.insort(placed, (begin, begin + each.num_bytes, first, last))
        end = max(end, begin + each.num_bytes)
    return end


def _offset(blocks: list[tuple[int, int]], num_bytes: int) -> int:
    """The begin of the smallest gap between blocks in order that is large enough; after the last one where none is."""
    smallest, found, end = 0, -1, 0
    for begin, stop in blocks:
        gap = begin - end
        if gap >= num_bytes and (found < 0 or gap < smallest):
            smallest, found = gap, end
        end = max(end, stop)
    return end if found < 0 else found


def _without_elided(ops: Sequence[Op]) -> list[Op]:
    """Transposes that only a product reads, as its second factor, are not made: it packs that factor either way."""
    readers: dict[int, list[int]] = {}
    for number, op in enumerate(ops):
        for source in op.inputs:
            readers.setdefault(source, []).append(number)
    found = list(ops)
    for number, op in enumerate(ops):
        users = readers.get(number, [])
        if op.kind != "transpose" or len(users) != 1 or ops[users[0]].kind != "bmm":
            continue
        product = found[users[0]]
        if product.inputs[1] == number:
            found[users[0]] = replace(product, inputs=(product.inputs[0], op.inputs[0]))
            found[number] = replace(op, kind="external", inputs=())
    return found


def _places(ops: Sequence[Op], readers: Sequence[Sequence[int]]) -> list[int]:
    """The operation whose place each result takes: its own, or that of an input it may overwrite."""
    place = list(range(len(ops)))
    for number, op in enumerate(ops):
        if op.kind not in _IN_PLACE or op.is_result or len(readers[number]) != 1:
            continue
        for source in op.inputs:
            fits = ops[source].num_bytes == op.num_bytes
            if fits and _is_inside(ops[source]) and len(readers[source]) == 1:
                place[number] = place[source]
                break
    return place


def _is_inside(op: Op) -> bool:
    return op.kind != "external" and not op.is_result
