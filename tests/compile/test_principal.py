"""Principal directions are those of LAPACK, and the same bits with other vector instructions."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
import torch

from prgec.compiler.principal import principal_directions

# Lengths fall by a factor from direction to direction; one is far longer, as in activations of language models.
_INPUTS = """
import torch
def inputs(n, width, factor):
    bits = torch.Generator().manual_seed(0)
    x = torch.randn(n, width, generator=bits) * factor ** torch.arange(width)
    x[:, 3] *= 200
    return x @ torch.linalg.qr(torch.randn(width, width, generator=bits))[0]
"""
_HASH = f"""{_INPUTS}
import hashlib
from prgec.compiler.principal import principal_directions
lengths = torch.tensor([0.9**place for place in range(160)], dtype=torch.float64)
x = (torch.arange(96 * 160, dtype=torch.float64).reshape(96, 160) * 7919 % 1021 - 510) * lengths
squares, rows = principal_directions(x, 8)
print(hashlib.sha256(squares.numpy().tobytes() + rows.contiguous().numpy().tobytes()).hexdigest())
"""
_SETTINGS = ({}, {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}, {"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize(
    ("n", "width", "rank", "factor"), [(96, 160, 8, 0.9), (160, 96, 8, 0.9), (64, 32, 8, 0.5), (20, 64, 16, 0.8)]
)
def test_directions_are_those_of_lapack(n: int, width: int, rank: int, factor: float) -> None:
    names: dict[str, object] = {}
    exec(_INPUTS, names)
    x: torch.Tensor = names["inputs"](n, width, factor)  # type: ignore[operator]
    squares, rows = principal_directions(x, rank)
    _, lengths, expected = torch.linalg.svd(x.to(torch.float64), full_matrices=False)
    torch.testing.assert_close(squares, lengths[:rank] ** 2, rtol=1e-6, atol=0)
    torch.testing.assert_close((rows * expected[:rank]).sum(1).abs(), torch.ones_like(squares), rtol=1e-6, atol=0)
    torch.testing.assert_close(rows @ rows.T, torch.eye(rank, dtype=torch.float64), rtol=0, atol=1e-7)


def test_fewer_directions_than_wanted_have_no_length() -> None:
    x = torch.ones(5, 4) * torch.arange(1, 6)[:, None]
    squares, rows = principal_directions(x, 3)
    assert float(squares[0]) == pytest.approx(4 * 55) and bool((squares[1:].abs() < 1e-9).all())
    assert rows[0].abs().tolist() == pytest.approx([0.5] * 4)


def test_every_processor_makes_the_same_bits() -> None:
    hashes = set()
    for setting in _SETTINGS:
        done = subprocess.run(
            [sys.executable, "-c", _HASH], env={**os.environ, **setting}, capture_output=True, text=True, check=True
        )
        hashes.add(done.stdout.strip())
    assert len(hashes) == 1 and len(hashes.pop()) == len(hashlib.sha256().hexdigest())
