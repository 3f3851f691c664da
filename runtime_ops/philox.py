"""Philox4x32-10, the counter-based generator of every random number of prgec.

Written in int64 arithmetic that never overflows, so that the same code runs on NumPy arrays and on torch tensors,
traces into an exported graph of plain ATen operators, and means the same in the C++ that some compilers turn it into,
where signed overflow means nothing.

Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    # Words in [0, 2^32), held in 64 bits.
    Words = TypeVar("Words", Tensor, npt.NDArray[np.int64])

MASK = 0xFFFFFFFF
# Place of the query in the counter of the frozen A matrices: no training query has this number.
FROZEN_QUERY = 0xFFFFFFFF
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def philox4x32(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Return the four 32-bit words of each counter under `key`.

    Args:
        counter: Four i64 tensors or arrays, broadcastable with one another, each value in [0, 2^32).
        key: Two i64 tensors or arrays, broadcastable with the counter, each value in [0, 2^32).

    Returns:
        Four i64 tensors or arrays of the broadcast shape, each value in [0, 2^32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def _multiply(word: Words, multiplier: int) -> tuple[Words, Words]:
    # By halves of the multiplier: both products stay below 2^48.
    upper, lower = word * (multiplier >> 16), word * (multiplier & 0xFFFF)
    low = ((upper & 0xFFFF) << 16) + lower
    return (upper >> 16) + (low >> 32), low & MASK
