"""Frozen LoRA A matrices, drawn from the project's own noise so that any runtime can rebuild them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from prgec.runtime_ops import noise
from prgec.runtime_ops.philox import FROZEN_QUERY


def lora_a(seed: int, site: int, rank: int, in_features: int) -> Tensor:
    """Return the frozen A of one site: normals of (seed, step 0, site, query 0xffffffff) times in_features^-1/2.

    Args:
        seed: Seed of all A matrices of a program; recorded in its manifest.
        site: Number of the LoRA site, in [0, 2^32).
        rank: r.
        in_features: Width of the layer's input.

    Returns:
        f32[r, in_features].
    """
    numel = rank * in_features
    words = noise.bits(torch.tensor(seed), torch.tensor(0), site, torch.tensor([FROZEN_QUERY]), (numel + 3) // 4)
    scale = 1.0 / math.sqrt(in_features)
    return noise.normals(words).flatten()[:numel].reshape(rank, in_features) * scale
