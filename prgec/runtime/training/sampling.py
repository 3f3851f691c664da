"""Which token comes next: the most likely one, or one drawn from those that are likely.

The C++ driver draws the same tokens (prgec/device/csrc/src/sampler.cpp), so nothing here depends on a library: numbers
come from the generator of the noise, powers of e from a polynomial, and sums are taken from left to right. Nothing
sorts the vocabulary, which would take longer than many a model.

Letters: V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from prgec.core.contract.arrays import Float64Array, FloatArray, IntArray
from prgec.errors import UsageError
from prgec.runtime_ops.philox import MASK, philox4x32

# Counters that no noise and no order of rows uses (docs/decisions/002-noise.md).
_TOKEN_QUERY = 0xFFFFFFFD
_LOG2_E = float.fromhex("0x1.71547652b82fep0")
# ln 2 in two parts, of which the first times a power of two's exponent is exact.
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
# Further down there is nothing to draw.
_LEAST_EXPONENT = -700.0
_NUM_TERMS = 14
# Tokens that are sorted first, where the likeliest that have a share together are looked for.
_FEW = 64


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token always.
        top_k: Draw among this many most likely tokens; 0 for all.
        top_p: Draw among the fewest tokens whose probabilities add up to this.
        seed: Seed of the draws.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def check(self) -> None:
        """Check the numbers.

        Raises:
            UsageError: If one has no meaning.
        """
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"--temperature is {self.temperature}; expected a finite number, 0 or more")
        if self.top_k < 0:
            raise UsageError(f"--top-k is {self.top_k}; expected 0 or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p is {self.top_p}; expected more than 0, at most 1")
        if self.seed < 0:
            raise UsageError(f"--seed is {self.seed}; expected 0 or more")


class Sampler:
    """Draws tokens, the same ones for the same seed and logits.

    Args:
        sampling: How.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._num_drawn = 0

    def choose(self, logits_V: FloatArray) -> int:
        """Return the next token."""
        if self._sampling.temperature == 0:
            return int(logits_V.argmax())
        ids, weights = likely(logits_V, self._sampling)
        sums = weights.cumsum()
        drawn = uniform(self._sampling.seed, self._num_drawn) * sums[-1]
        self._num_drawn += 1
        # Rounding may leave the draw after the last sum.
        place = min(int(np.searchsorted(sums, drawn, side="right")), len(ids) - 1)
        return int(ids[place])


def likely(logits_V: FloatArray, sampling: Sampling) -> tuple[IntArray, Float64Array]:
    """Return the tokens to draw among, in order, and their probabilities up to a factor."""
    ids = np.arange(len(logits_V)) if not sampling.top_k else _most_likely(logits_V, sampling.top_k)
    logits = logits_V[ids].astype(np.float64)
    weights = power_of_e((logits - logits.max()) / sampling.temperature)
    if sampling.top_p == 1:
        return ids, weights
    kept = _heaviest(weights, logits_V[ids], sampling.top_p * weights.cumsum()[-1])
    return ids[kept], weights[kept]


def _heaviest(weights: Float64Array, logits: FloatArray, least_sum: float) -> IntArray:
    """Return the places, in order, of the fewest tokens with that sum; the one that crosses the line belongs."""
    count = _FEW
    while True:
        places = _most_likely(logits, count)
        order = places[np.argsort(-logits[places], kind="stable")]
        sums = weights[order].cumsum()
        if sums[-1] >= least_sum or count >= len(logits):
            return np.sort(order[: int(np.searchsorted(sums, least_sum)) + 1])
        count *= _FEW


def _most_likely(logits: FloatArray, count: int) -> IntArray:
    """Return the places of the largest numbers, in order; of equal ones the first."""
    if count >= len(logits):
        return np.arange(len(logits))
    least = np.partition(logits, len(logits) - count)[len(logits) - count]
    larger = np.flatnonzero(logits > least)
    return np.sort(np.concatenate([larger, np.flatnonzero(logits == least)[: count - len(larger)]]))


def uniform(seed: int, number: int) -> float:
    """Return the draw of that number: a multiple of 2^-53 in [0, 1)."""
    counter = (number & MASK, _TOKEN_QUERY, 0, (seed >> 32) & MASK)
    c0, c1, c2, c3, k0, k1 = (np.array([word], dtype=np.int64) for word in (*counter, seed & MASK, 0))
    x0, x1, _, _ = philox4x32((c0, c1, c2, c3), (k0, k1))
    return ((int(x1[0]) << 32 | int(x0[0])) >> 11) * 2.0**-53


def power_of_e(exponents: Float64Array) -> Float64Array:
    """Return e to the power of numbers up to 0, to the last bit or two; every operation is one of IEEE 754."""
    kept = np.maximum(exponents, _LEAST_EXPONENT)
    twos = np.rint(kept * _LOG2_E)
    rest = (kept - twos * _LN2_HIGH) - twos * _LN2_LOW
    value = np.full_like(rest, 1.0 / math.factorial(_NUM_TERMS - 1))
    for n in reversed(range(_NUM_TERMS - 1)):
        value *= rest
        value += 1.0 / math.factorial(n)
    result: Float64Array = np.where(exponents < _LEAST_EXPONENT, 0.0, np.ldexp(value, twos.astype(np.int64)))
    return result
