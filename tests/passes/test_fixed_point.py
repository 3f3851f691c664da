"""Exact products: whatever the order of their terms, the bits are the same, and near to those of f64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from prgec.passes.fixed_point import LEFT_BITS, RIGHT_BITS, fine_product, gram, product, whole_numbers
from prgec.passes.triangular import inverse_factor, inverse_of_lower, lower_factor


def _values(*shape: int, seed: int = 0) -> Tensor:
    """Values of sizes as far apart as those of activations."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(torch.randint(-9, 10, (*shape[:-1], 1), generator=generator).float())
    return torch.randn(shape, generator=generator) * sizes


def _positive(width: int, seed: int = 0) -> Tensor:
    x = _values(3 * width, width, seed=seed).double()
    return x.T @ x / len(x) + 0.01 * torch.eye(width, dtype=torch.float64)


@pytest.mark.parametrize("multiply", [product, fine_product])
@pytest.mark.parametrize("width", [1, 31, 2000])
def test_the_order_of_terms_changes_no_bit(multiply: object, width: int) -> None:
    a, b = _values(7, width).double(), _values(5, width, seed=1).double()
    found = multiply(a, b)  # type: ignore[operator]
    for seed in range(4):
        order = torch.randperm(width, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(multiply(a[:, order].contiguous(), b[:, order].contiguous()), found)  # type: ignore[operator]


def test_plain_f64_does_depend_on_the_order() -> None:
    """Else the test above could not fail."""
    a, b = _values(7, 2000).double(), _values(5, 2000, seed=1).double()
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(a[:, order] @ b[:, order].T, a @ b.T)


def test_how_near_products_are() -> None:
    a, b = _values(7, 300).double(), _values(5, 300, seed=1).double()
    size = a.abs().amax(1, keepdim=True) * b.abs().amax(1) * 300**0.5
    assert float(((product(a, b) - a @ b.T) / size).abs().max()) < 2.0 ** -(LEFT_BITS - 3)
    assert float(((fine_product(a, b) - a @ b.T) / size).abs().max()) < 1e-11


def test_batches_of_products() -> None:
    a, b = _values(2, 3, 7, 11), _values(2, 3, 5, 11, seed=1)
    for i in range(2):
        for j in range(3):
            assert torch.equal(product(a, b)[i, j], product(a[i, j], b[i, j]))


def test_whole_numbers_are_whole_and_give_the_values_back() -> None:
    values = _values(9, 40)
    values[3] = 0.0
    numbers, exponents = whole_numbers(values, RIGHT_BITS)
    assert torch.equal(numbers, numbers.round()) and float(numbers.abs().max()) <= 2**RIGHT_BITS
    back = torch.ldexp(numbers, exponents)
    assert float(((back - values).abs() / values.abs().amax(1, keepdim=True).clamp_min(1e-30)).max()) < 2.0**-RIGHT_BITS
    # Rounding again changes nothing.
    assert torch.equal(whole_numbers(back, RIGHT_BITS)[0], numbers)


def test_a_gram_matrix_in_any_order_of_rows() -> None:
    x = _values(500, 24)
    found = gram(x)
    for seed in range(4):
        assert torch.equal(gram(x[torch.randperm(500, generator=torch.Generator().manual_seed(seed))]), found)
    torch.testing.assert_close(found, x.double().T @ x.double(), rtol=1e-4, atol=1e-4 * float(found.diagonal().max()))


@pytest.mark.parametrize("width", [1, 2, 63, 64, 65, 200, 700])
def test_triangular_factors(width: int) -> None:
    matrix = _positive(width)
    lower = lower_factor(matrix)
    torch.testing.assert_close(lower, torch.linalg.cholesky(matrix), rtol=1e-8, atol=1e-10 * float(lower.max()))
    torch.testing.assert_close(
        inverse_of_lower(lower) @ lower, torch.eye(width, dtype=torch.float64), rtol=0, atol=1e-8
    )
    expected = torch.linalg.cholesky(torch.linalg.inv(matrix), upper=True)
    found = inverse_factor(matrix)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8 * float(expected.abs().max()))


def test_factors_are_the_same_with_any_number_of_threads() -> None:
    matrix, threads = _positive(300), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = inverse_factor(matrix)
        torch.set_num_threads(4)
        assert torch.equal(inverse_factor(matrix), one)
    finally:
        torch.set_num_threads(threads)


def test_zeros_of_a_triangular_factor_change_nothing() -> None:
    """In another order of columns they are all over the rows, so that none are left out."""
    a, b = _values(1100, 1100).double().tril(), _values(3, 1100, seed=1).double()
    order = torch.randperm(1100, generator=torch.Generator().manual_seed(0))
    for triangle in (a, a.T):
        expected = fine_product(triangle[:, order].contiguous(), b[:, order].contiguous())
        assert torch.equal(fine_product(triangle, b), expected)


def test_a_gram_matrix_of_wide_rows_is_symmetric() -> None:
    x = _values(20, 1100)
    found = gram(x)
    assert torch.equal(found, found.T)
    torch.testing.assert_close(found, x.double().T @ x.double(), rtol=1e-4, atol=1e-4 * float(found.diagonal().max()))


def test_a_matrix_without_a_factor() -> None:
    with pytest.raises(ValueError, match="not positive definite"):
        lower_factor(-torch.eye(3, dtype=torch.float64))
