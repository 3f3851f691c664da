"""Products of matrices that are the same bits on every processor and with any number of threads.

The order in which a product adds its terms is the library's: it changes with the width of vectors and the number of
threads, and the last bits of the sum with it. Here every factor is a whole number times a power of two. Their products
and all sums of these are whole numbers below 2^53, which f64 holds exactly, so there is nothing to round.

Letters: n rows, D terms of a sum, O columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Bits of the numbers on either side: 2^18 times 2^20 leaves room for sums of 2^15 terms.
LEFT_BITS, RIGHT_BITS = 18, 20


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

    Args:
        a: f64[n, D].
        b: f64[O, D].
    """
    # Two numbers of so many bits and a sum over D stay below 2^53.
    bits = (53 - a.shape[-1].bit_length()) // 2
    numbers_a, rest_a, exponents_a = _two_numbers(a, bits)
    numbers_b, rest_b, exponents_b = _two_numbers(b, bits)
    small = numbers_a @ rest_b.T + rest_a @ numbers_b.T
    sums = numbers_a @ numbers_b.T + small * 2.0**-bits
    return sums.mul_(_power_of_two(exponents_a)).mul_(_power_of_two(exponents_b).T)


def _two_numbers(values: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers, what they leave in units of 2^-bits of theirs, and exponents."""
    numbers, exponents = whole_numbers(values, bits)
    rest = (values * _power_of_two(-exponents)).sub_(numbers).mul_(2.0**bits).round_()
    return numbers, rest, exponents


def gram(values: Tensor) -> Tensor:
    """Return `values.T @ values` of rows rounded to whole numbers: f64[D, D] of [n, D].

    Rows of one size are summed as whole numbers; the sums of different sizes are added from the smallest on.
    """
    numbers_nD, exponents_n1 = whole_numbers(values, LEFT_BITS)
    sizes_n = exponents_n1.squeeze(-1)
    total_DD = torch.zeros(values.shape[1], values.shape[1], dtype=torch.float64)
    for size in sizes_n.unique(sorted=True):
        rows = numbers_nD[sizes_n == size]
        total_DD += (rows.T @ rows).mul_(_power_of_two(2 * size))
    return total_DD
