"""Products of matrices that are the same bits on every processor and with any number of threads.

The order in which a product adds its terms is the library's: it changes with the width of vectors and the number of
threads, and the last bits of the sum with it. Here every factor is a whole number times a power of two. Their products
and all sums of these are whole numbers below 2^53, which f64 holds exactly, so there is nothing to round.

Letters: n rows, D terms of a sum, O columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Bits of the numbers on either side: 2^18 times 2^20 leaves room for sums of 2^15 terms.
LEFT_BITS, RIGHT_BITS = 18, 20
# Rows of a product that are made at once: what is made on the way stays in the processor's cache.
_STRIP = 512


def whole_numbers(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Round each row to whole numbers of a power of two: `values` is about `numbers * 2^exponents`.

    Args:
        values: [..., D] of any float type.
        bits: The largest number is less than 2^bits.

    Returns:
        Numbers f64[..., D] and exponents i32[..., 1].
    """
    lowest, highest = values.aminmax(dim=-1, keepdim=True)
    _, exponents = torch.frexp(torch.maximum(-lowest, highest).to(torch.float64))
    shifts = bits - exponents
    return (values.to(torch.float64) * _power_of_two(shifts)).round_(), -shifts


def rounded(values: Tensor) -> Tensor:
    """Return f64 values whose rows are whole numbers of `LEFT_BITS`: what the left factor of a product is.

    >>> rounded(torch.tensor([[1.0, 1e-9]])).tolist()
    [[1.0, 0.0]]
    """
    numbers, exponents = whole_numbers(values, LEFT_BITS)
    return numbers.mul_(_power_of_two(exponents))


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b.T` of factors rounded to whole numbers: f64[..., n, O].

    Args:
        a: [..., n, D].
        b: [..., O, D].
    """
    return product_with(a, *whole_numbers(b, RIGHT_BITS))


def product_with(a: Tensor, numbers_b: Tensor, exponents_b: Tensor) -> Tensor:
    """Return `product` of a factor that is in whole numbers of `RIGHT_BITS` already, of any float type."""
    numbers_a, exponents_a = whole_numbers(a, LEFT_BITS)
    numbers_b = numbers_b.to(torch.float64)
    sums = numbers_a @ numbers_b.transpose(-1, -2)
    return sums.mul_(_power_of_two(exponents_a)).mul_(_power_of_two(exponents_b).transpose(-1, -2))


def _power_of_two(exponents: Tensor) -> Tensor:
    """Return f64 numbers to multiply with, which rounds nothing."""
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float64), exponents)


def fine_product(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b.T` of factors rounded to two whole numbers each, about as exact as f64: f64[n, O].

    Columns that are zero in some rows of `a` take no time there, so that a triangular factor takes half.

    Args:
        a: f64[n, D].
        b: f64[O, D].
    """
    return fine_parts(a).times(fine_parts(b))


@dataclass(frozen=True)
class FineParts:
    """A matrix in two whole numbers a value: `(numbers + rest * 2^-bits) * 2^exponents`.

    Attributes:
        numbers: f64[n, D].
        rest: The remainder of each value, f64[n, D].
        exponents: i32[n, 1].
        bits: Bits of a number; two of them and a sum over D stay below 2^53.
    """

    numbers: Tensor
    rest: Tensor
    exponents: Tensor
    bits: int

    def rows(self, first: int, last: int) -> FineParts:
        """Return some of the rows."""
        return FineParts(self.numbers[first:last], self.rest[first:last], self.exponents[first:last], self.bits)

    def times(self, other: FineParts) -> Tensor:
        """Return the product with the other one transposed, f64[n, O]."""
        product_nO = self.numbers.new_empty(len(self.numbers), len(other.numbers))
        for first in range(0, len(product_nO), _STRIP):
            strip = self.rows(first, first + _STRIP)
            torch.mul(strip._sums(other), _power_of_two(strip.exponents), out=product_nO[first : first + _STRIP])
        return product_nO.mul_(_power_of_two(other.exponents).T)

    def _sums(self, other: FineParts) -> Tensor:
        used = self.numbers.any(dim=0).logical_or_(self.rest.any(dim=0)).nonzero()
        first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        numbers, rest, numbers_b, rest_b = (
            each[:, first:last] for each in (self.numbers, self.rest, other.numbers, other.rest)
        )
        small = (numbers @ rest_b.T).addmm_(rest, numbers_b.T)
        return (numbers @ numbers_b.T).add_(small, alpha=2.0**-self.bits)


def fine_parts(values: Tensor) -> FineParts:
    """Round each row of f64[n, D] to two whole numbers a value."""
    bits = (53 - values.shape[-1].bit_length()) // 2
    numbers, exponents = whole_numbers(values, bits)
    rest = (values * _power_of_two(-exponents)).sub_(numbers).mul_(2.0**bits).round_()
    return FineParts(numbers, rest, exponents, bits)


def gram(values: Tensor) -> Tensor:
    """Return `values.T @ values` of rows rounded to whole numbers: f64[D, D] of [n, D].

    Rows of one size are summed as whole numbers; the sums of different sizes are added from the smallest on.
    """
    numbers_nD, exponents_n1 = whole_numbers(values, LEFT_BITS)
    sizes_n = exponents_n1.squeeze(-1)
    total_DD = torch.zeros(values.shape[1], values.shape[1], dtype=torch.float64)
    for size in sizes_n.unique(sorted=True):
        rows = numbers_nD[sizes_n == size]
        scale = float(_power_of_two(2 * size))
        for first in range(0, len(total_DD), _STRIP):
            last = first + _STRIP
            total_DD[first:last, :last].add_(rows[:, first:last].T @ rows[:, :last], alpha=scale)
    return total_DD.tril_().add_(total_DD.tril(-1).T)
