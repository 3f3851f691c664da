"""Which values of a forward pass to compute again in the backward pass, from sizes alone.

A value that the backward pass reads is kept from where it was made, unless it follows by cheap operations from others
that are kept anyway, or from smaller ones. Chosen from the last value to the first, each by what keeping its sources
would add, until nothing changes: where every value has one reader, the least memory that cheap operations allow.
Attention is computed again in Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
section 5, and Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", section 3.1.

No torch here: the compiler asks for graphs, and `prgec plan` for lists of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Value:
    """A result of the forward pass.

    Attributes:
        sources: Numbers of the values it is computed from, all smaller than its own.
        num_bytes: Its size.
        is_cheap: Whether computing it again costs little beside a product with a layer's weight.
        is_free: Whether it is there all the time: a weight, a table, an input.
    """

    sources: tuple[int, ...]
    num_bytes: int
    is_cheap: bool
    is_free: bool = False


def values_to_recompute(values: Sequence[Value], read_late: set[int]) -> set[int]:
    """Return the numbers of values to compute again, those on the way to others included.

    Args:
        values: The forward pass, in order.
        read_late: Numbers of the values that the backward pass reads.
    """
    choice = _Choice(values, read_late)
    while choice.walk():
        pass
    return choice.again


def checkpoints(num_sums: int) -> range:
    """Return which sums to keep of a chain in which each can be computed from its predecessor.

    The backward reads the last sum first. If all are computed again from the first, all are alive from then on; with
    one in every sqrt(n) kept, only those up to the next kept one are (Chen et al., "Training Deep Nets with Sublinear
    Memory Cost", section 3). A chain of fewer than four gains nothing.
    """
    every = math.isqrt(num_sums)
    return range(every - 1, num_sums, every) if every > 1 else range(0)


class _Choice:
    """The choice so far: values that are kept and values that are computed again."""

    def __init__(self, values: Sequence[Value], kept: set[int]) -> None:
        self.values = values
        self.kept = {number for number in kept if not values[number].is_free}
        self.again: set[int] = set()

    def walk(self) -> bool:
        """Compute kept values again where that adds less to memory than keeping them; return whether there were any."""
        before = len(self.again)
        for number in range(len(self.values) - 1, -1, -1):
            if number in self.kept and self._is_worth_it(number):
                self.kept.discard(number)
                self._compute_again(number)
        return len(self.again) > before

    def _is_there(self, number: int) -> bool:
        """Whether the backward has a value at no further cost in memory."""
        return self.values[number].is_free or number in self.kept or number in self.again

    def _is_worth_it(self, number: int) -> bool:
        value = self.values[number]
        return value.is_cheap and self._cost_of_sources(number, value.num_bytes) < value.num_bytes

    def _cost_of_sources(self, number: int, limit: int) -> int:
        """Bytes that would be kept besides, or `limit` where that is no less."""
        total = 0
        for source in self.values[number].sources:
            total += self._cost(source, limit - total)
            if total >= limit:
                return limit
        return total

    def _cost(self, number: int, limit: int) -> int:
        if self._is_there(number):
            return 0
        value = self.values[number]
        size = min(value.num_bytes, limit)
        return self._cost_of_sources(number, size) if value.is_cheap else size

    def _compute_again(self, number: int) -> None:
        self.again.add(number)
        for source in self.values[number].sources:
            if self._is_there(source):
                continue
            if self._is_worth_it(source):
                self._compute_again(source)
            else:
                self.kept.add(source)
