"""Standard normal noise as a pure function of (seed, step, site, query, element), equal bit for bit on every runtime.

The specification, which the C++ kernels and every other runtime reproduce:

1. Words. `key = (seed & 0xffffffff, step & 0xffffffff)` and
   `counter = (element // 4, query, site, (seed >> 32) & 0xffffffff)`; Philox4x32-10 gives the words x0..x3. Negative
   seeds and steps count modulo 2^64 and 2^32: step -1 is 0xffffffff.
2. Lanes. Elements 0 and 1 of a block of four are `radius(x0) * cos(x1)` and `radius(x0) * sin(x1)`; elements 2 and 3
   are the same of x2 and x3.
3. Radius of xa: `k = (xa >> 8) + 1`, a uniform k * 2^-24 in (0, 1]; `radius = sqrt(-2 * ln(k * 2^-24))`.
   With b the bits of the f32 k, `i = b + (0x3f800000 - 0x3f3504f3)`, `e = (i >> 23) - 127 - 24` and
   `m = f32 with bits ((i & 0x7fffff) + 0x3f3504f3)` in [sqrt(1/2), sqrt(2)):
   `f = m - 1; s = f * f; p = LOG[0]; p = p * f + LOG[j] for j = 1..7; y = (p * f) * s; y = y + e * LN2_LOW;
   y = y - s * 0.5; ln = (f + y) + e * LN2_HIGH; radius = sqrt(ln * -2)`.
4. Angle of xb: the quadrant is `xb >> 30`; with `n = 2 * ((xb >> 8) & 0x3fffff) - 0x3fffff`, an odd number, the angle
   inside it is `t = n * ANGLE` in (-pi/4, pi/4), symmetric about zero. `u = t * t`,
   `s = t + t * (u * ((SIN[0] * u + SIN[1]) * u + SIN[2]))`,
   `c = (1 - u * 0.5) + (u * u) * ((COS[0] * u + COS[1]) * u + COS[2])`.
   (cos, sin) of quadrants 0..3 are (c, s), (-s, c), (-c, -s), (s, -c).

Every operation is one IEEE f32 operation rounded to nearest, in the order written: no fused multiply-add, no
reassociation, no libm. The polynomials are Chebyshev fits made for this module: 9e-8 relative for ln, 1.1e-7 absolute
for sin and cos, 1e-6 absolute for a normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from prgec.runtime_ops.philox import MASK, philox4x32

LOG = (
    float.fromhex("-0x1.43b246p-4"),
    float.fromhex("0x1.02814ep-3"),
    float.fromhex("-0x1.0a33eap-3"),
    float.fromhex("0x1.231ce6p-3"),
    float.fromhex("-0x1.54d03ep-3"),
    float.fromhex("0x1.999f14p-3"),
    float.fromhex("-0x1.0000cep-2"),
    float.fromhex("0x1.555554p-2"),
)
LN2_HIGH = float.fromhex("0x1.63p-1")
LN2_LOW = float.fromhex("-0x1.bd0106p-13")
SIN = (float.fromhex("-0x1.9ac9bp-13"), float.fromhex("0x1.110c28p-7"), float.fromhex("-0x1.555552p-3"))
COS = (float.fromhex("0x1.9bd89cp-16"), float.fromhex("-0x1.6c12d2p-10"), float.fromhex("0x1.555554p-5"))
ANGLE = float.fromhex("0x1.921fb6p-23")

_ONE_BITS = 0x3F800000
_SQRT_HALF_BITS = 0x3F3504F3

Words4 = tuple[Tensor, Tensor, Tensor, Tensor]


def bits(seed: Tensor, step: Tensor, site: int, queries: Tensor, num_blocks: int) -> Words4:
    """Return the words x0..x3 of the first `num_blocks` blocks of every query.

    Args:
        seed: i64[]; all 64 bits count.
        step: i64[]; the low 32 bits count.
        site: Number of the LoRA site, in [0, 2^32).
        queries: i64[Q], each in [0, 2^32).
        num_blocks: Blocks of four elements, at most 2^32.

    Returns:
        Four i64[Q, num_blocks] tensors of values in [0, 2^32).
    """
    block = torch.arange(num_blocks, dtype=torch.int64, device=seed.device).reshape(1, -1)
    query = queries.reshape(-1, 1)
    counter = (block, query, torch.full_like(query, site), ((seed >> 32) & MASK).reshape(1, 1))
    return philox4x32(counter, (seed & MASK, step & MASK))


def normals(words: Words4) -> Tensor:
    """Turn words i64[Q, blocks] into standard normals f32[Q, 4 * blocks]."""
    x0, x1, x2, x3 = words
    first, second = _box_muller(x0, x1), _box_muller(x2, x3)
    return torch.stack((*first, *second), dim=-1).flatten(-2)


def randn(seed: Tensor, step: Tensor, site: int, q: int, shape: Sequence[int]) -> Tensor:
    """Return the noise of queries 0..q-1 at one site.

    Args:
        seed: i64[].
        step: i64[].
        site: Number of the LoRA site.
        q: Number of queries.
        shape: Shape of one query's noise; elements count in row-major order.

    Returns:
        f32[q, *shape] of standard normals.
    """
    numel = prod(shape)
    queries = torch.arange(q, dtype=torch.int64, device=seed.device)
    words = bits(seed, step, site, queries, (numel + 3) // 4)
    return normals(words)[:, :numel].reshape(q, *shape).contiguous()


def _box_muller(xa: Tensor, xb: Tensor) -> tuple[Tensor, Tensor]:
    # The f32 square root of torch may be off by one bit; that of f64, rounded to f32, is always the IEEE one.
    radius = torch.sqrt((_log_uniform(xa) * -2.0).to(torch.float64)).to(torch.float32)
    cos, sin = _cos_sin(xb)
    return radius * cos, radius * sin


def _log_uniform(word: Tensor) -> Tensor:
    """Return ln(((word >> 8) + 1) * 2^-24) in f32."""
    k = ((word >> 8) + 1).to(torch.float32)
    i = k.view(torch.int32) + (_ONE_BITS - _SQRT_HALF_BITS)
    e = ((i >> 23) - (127 + 24)).to(torch.float32)
    f = ((i & 0x7FFFFF) + _SQRT_HALF_BITS).view(torch.float32) - 1.0
    s = f * f
    p = _horner(LOG, f)
    y = (p * f) * s
    y = y + e * LN2_LOW
    y = y - s * 0.5
    return (f + y) + e * LN2_HIGH


def _cos_sin(word: Tensor) -> tuple[Tensor, Tensor]:
    quadrant = word >> 30
    n = 2 * ((word >> 8) & 0x3FFFFF) - 0x3FFFFF
    t = n.to(torch.float32) * ANGLE
    u = t * t
    s = t + t * (u * _horner(SIN, u))
    c = (1.0 - u * 0.5) + (u * u) * _horner(COS, u)
    is_odd = (quadrant & 1) == 1
    cos, sin = torch.where(is_odd, s, c), torch.where(is_odd, c, s)
    cos = torch.where(((quadrant + 1) & 2) == 2, -cos, cos)
    return cos, torch.where((quadrant & 2) == 2, -sin, sin)


def _horner(coefficients: Sequence[float], x: Tensor) -> Tensor:
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value
