"""Principal directions of a set of vectors, to the same bits on every processor.

LAPACK's last bits depend on the processor and on the number of threads. Here a subspace is iterated with products of
whole numbers (`prgec.passes.fixed_point`), made orthogonal column by column, and turned into its axes by rotations in
a fixed order.

Letters: n vectors, D their width, m the smaller of n and D, k columns of the subspace, r directions.
"""

from __future__ import annotations

import math
import random
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prgec.passes.fixed_point import fine_product

_Array: TypeAlias = npt.NDArray[np.float64]

# Each one divides the share of directions outside the subspace by the ratio of the squared lengths.
_ITERATIONS = 10
_SWEEPS = 12
# A column that is shorter, relative to the first one, was made by rounding alone.
_LEAST_RELATIVE_LENGTH = 1e-14


def principal_directions(inputs_nD: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the squared lengths, f64[r], and the directions, f64[r, D], that hold most of some vectors, longest first.

    Directions are orthonormal. Fewer than r have a length where the vectors span fewer.

    Args:
        inputs_nD: Vectors of any float type.
        rank: r.

    >>> squares, rows = principal_directions(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), 1)
    >>> squares.tolist(), rows.abs().tolist()
    ([9.0], [[1.0, 0.0]])
    """
    x = inputs_nD.to(torch.float64)
    is_wide = x.shape[0] < x.shape[1]
    gram_mm = fine_product(x, x) if is_wide else fine_product(x.T, x.T)
    rank = min(rank, len(gram_mm))
    basis_mk = _start(len(gram_mm), min(2 * rank + 8, len(gram_mm)))
    for _ in range(_ITERATIONS):
        basis_mk = _orthonormal(fine_product(gram_mm, basis_mk.T))
    squares_k, turns_kk = _axes(fine_product(basis_mk.T, fine_product(gram_mm, basis_mk.T).T))
    squares_r = torch.from_numpy(squares_k[:rank])
    vectors_mr = fine_product(basis_mk, torch.from_numpy(turns_kk[:, :rank].T.copy()))
    if not is_wide:
        return squares_r, vectors_mr.T.contiguous()
    lengths_r = torch.where(squares_r > 0, squares_r, torch.inf).sqrt()
    return squares_r, (fine_product(x.T, vectors_mr.T) / lengths_r).T.contiguous()


def _start(height: int, width: int) -> Tensor:
    """Return columns that no direction is orthogonal to but by chance: f64[m, k]."""
    bits = random.Random(0)
    numbers = [bits.getrandbits(16) - (1 << 15) for _ in range(height * width)]
    return _orthonormal(torch.tensor(numbers, dtype=torch.float64).reshape(height, width))


def _orthonormal(columns_mk: Tensor) -> Tensor:
    """Return an orthonormal basis by Gram and Schmidt, each column twice; zeros for what rounding alone made."""
    basis_km = torch.zeros_like(columns_mk.T)
    least = 0.0
    for place, column in enumerate(columns_mk.T):
        vector = column.clone()
        for _ in range(2 if place else 0):
            shares = fine_product(basis_km[:place], vector[None])
            vector = vector - fine_product(basis_km[:place].T, shares.T)[:, 0]
        length = math.sqrt(float(fine_product(vector[None], vector[None])))
        least = least or length * _LEAST_RELATIVE_LENGTH
        if length > least:
            basis_km[place] = vector / length
    return basis_km.T.contiguous()


def _axes(matrix_kk: Tensor) -> tuple[_Array, _Array]:
    """Return eigenvalues, largest first, and eigenvectors as columns, by Jacobi's rotations row after row.

    NumPy's products and sums of single rows are rounded one by one, whatever the processor.
    """
    left = matrix_kk.numpy().copy()
    left = (left + left.T) * 0.5
    turns = np.eye(len(left))
    for _ in range(_SWEEPS):
        for p in range(len(left) - 1):
            for q in range(p + 1, len(left)):
                if abs(left[p, q]) > 1e-16 * math.sqrt(abs(left[p, p] * left[q, q])):
                    _rotate(left, turns, p, q)
    order = np.argsort(-left.diagonal(), kind="stable")
    return left.diagonal()[order].copy(), turns[:, order]


def _rotate(left: _Array, turns: _Array, p: int, q: int) -> None:
    """Turn two axes so that their common element becomes zero."""
    ratio = float(left[q, q] - left[p, p]) / (2.0 * float(left[p, q]))
    tangent = math.copysign(1.0, ratio) / (abs(ratio) + math.sqrt(ratio * ratio + 1.0))
    cosine = 1.0 / math.sqrt(tangent * tangent + 1.0)
    sine = tangent * cosine
    for matrix in (left, turns):
        first, second = matrix[:, p].copy(), matrix[:, q].copy()
        matrix[:, p], matrix[:, q] = first * cosine - second * sine, first * sine + second * cosine
    first, second = left[p].copy(), left[q].copy()
    left[p], left[q] = first * cosine - second * sine, first * sine + second * cosine
