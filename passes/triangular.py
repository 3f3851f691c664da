"""Triangular factors of symmetric matrices, to the same bits on every processor.

LAPACK's last bits depend on the processor and on the number of threads. Here columns of a block are done one by one
with products and differences that are rounded each for itself, and blocks reach others by products of whole numbers
(`fixed_point.py`).

Letters: D rows and columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prgec.passes.fixed_point import fine_parts, fine_product

_BLOCK = 128
# Rows that are done at once, so that they stay in the processor's cache.
_STRIP = 512


def inverse_factor(matrix: Tensor) -> Tensor:
    """Return the upper triangular R with `R.T @ R` the inverse of a symmetric positive definite matrix, f64[D, D].

    The factor of the matrix with rows and columns in reverse order is R's inverse in reverse order, so that neither the
    inverse of the matrix nor a second factor is needed.

    Raises:
        ValueError: If the matrix is not positive definite.
    """
    left = matrix.to(torch.float64).flip(0, 1)
    # Where the caller does not hold it either, it is gone before more is made of it.
    del matrix
    _factor(left)
    _invert(left)
    return left.flip(0, 1)


def lower_factor(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor: the lower triangular L with `L @ L.T` the matrix, f64[D, D].

    Raises:
        ValueError: If the matrix is not positive definite.
    """
    left = matrix.to(torch.float64, copy=True)
    _factor(left)
    return left


def _factor(left: Tensor) -> None:
    """Put the factor in the place of the matrix."""
    width = len(left)
    for first in range(0, width, _BLOCK):
        last = min(first + _BLOCK, width)
        _factor_columns(left[first:, first:last])
        below = fine_parts(left[last:, first:last])
        for start in range(last, width, _STRIP):
            end = start + _STRIP
            left[start:end, last:end] -= below.rows(start - last, end - last).times(below.rows(0, end - last))
    left.tril_()


def _factor_columns(panel: Tensor) -> None:
    """Factor the square at the head of a block of columns, and divide the rows below by it, in place."""
    count = panel.shape[1]
    roots = []
    for k in range(count):
        if not panel[k, k] > 0:
            raise ValueError("the matrix is not positive definite")
        roots.append(panel[k, k].sqrt())
        panel[k:count, k] /= roots[k]
        panel[k + 1 : count, k + 1 :] -= torch.outer(panel[k + 1 : count, k], panel[k + 1 : count, k])
    square = panel[:count]
    for rows in panel[count:].split(_STRIP):
        # Transposed, so that a column lies in one place.
        columns = rows.T.contiguous()
        for k in range(count):
            columns[k] /= roots[k]
            columns[k + 1 :] -= torch.outer(square[k + 1 :, k], columns[k])
        rows.copy_(columns.T)


def inverse_of_lower(lower: Tensor) -> Tensor:
    """Return the inverse of a lower triangular matrix, f64[D, D], from those of its halves."""
    inverse = lower.clone()
    _invert(inverse)
    return inverse


def _invert(left: Tensor) -> None:
    """Put the inverse in the place of the matrix."""
    width = len(left)
    if width <= _BLOCK:
        left.copy_(_inverse_of_block(left))
        return
    middle = width // 2
    first, second = left[:middle, :middle], left[middle:, middle:]
    _invert(first)
    _invert(second)
    # The triangular factor goes to the left of each product, where its zeros take no time.
    left[middle:, :middle] = -fine_product(first.T, fine_product(second, left[middle:, :middle].T)).T


def _inverse_of_block(lower: Tensor) -> Tensor:
    left = torch.eye(len(lower), dtype=torch.float64)
    for k in range(len(lower)):
        left[k] /= lower[k, k]
        left[k + 1 :] -= torch.outer(lower[k + 1 :, k], left[k])
    return left
