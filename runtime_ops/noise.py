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
reassociation, no libm. Other runtimes compile this module when they lack the kernels, and some of their compilers fuse
`a * b + c` whatever their flags. So a product is taken in f64, where it is exact, and rounded to f32: the conversion in
between cannot be fused away. Nor does anything here look at the bits of a float, which few runtimes can. The
polynomials are Chebyshev fits made for this module: 9e-8 relative for ln, 1.1e-7 absolute for sin and cos, 1e-6
absolute for a normal.
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

# The f32 with bits 0x3fb504f3: mantissas from here on count as one half of themselves, with the next exponent.
_SQRT_TWO = float.fromhex("0x1.6a09e6p+0")

# Elements that one call of Philox makes.
BLOCK = 4
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
    """Turn words i64[..., blocks] into standard normals f32[..., 4 * blocks]."""
    x0, x1, x2, x3 = words
    # Both pairs of a block at once: half the ops where this becomes a graph.
    first, second = _box_muller(torch.stack((x0, x2), dim=-1), torch.stack((x1, x3), dim=-1))
    return torch.stack((first, second), dim=-1).flatten(-3)


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


def randn_blocks(seed: Tensor, steps: Tensor, sites: Tensor, blocks: Tensor, queries: Tensor) -> Tensor:
    """Return the noise of many sites and several steps at once, block by block.

    Args:
        seed: i64[].
        steps: i64[S, 1, 1].
        sites: i64[M], the site of each block of four elements.
        blocks: i64[M], the number of each block within its site.
        queries: i64[q, 1], the numbers 0 to q - 1.

    Returns:
        f32[S, q, 4M] of standard normals; elements 4j to 4j + 3 belong to block j.
    """
    counter = (blocks, queries, sites, (seed >> 32) & MASK)
    return normals(philox4x32(counter, (seed & MASK, steps & MASK)))


def _box_muller(xa: Tensor, xb: Tensor) -> tuple[Tensor, Tensor]:
    # The f32 square root of torch may be off by one bit; that of f64, rounded to f32, is always the IEEE one.
    radius = torch.sqrt((_log_uniform(xa) * -2.0).to(torch.float64)).to(torch.float32)
    cos, sin = _cos_sin(xb)
    return _product(radius, cos), _product(radius, sin)


def _log_uniform(word: Tensor) -> Tensor:
    """Return ln(((word >> 8) + 1) * 2^-24) in f32."""
    k = (word >> 8) + 1
    e, scale = _exponent(k)
    m = k.to(torch.float32) * scale
    is_upper = m >= _SQRT_TWO
    f = torch.where(is_upper, m * 0.5, m) - 1.0
    e = torch.where(is_upper, e + 1.0, e) - 24.0
    s = _product(f, f)
    p = _horner(LOG, f)
    y = _product(_product(p, f), s)
    y = y + _product(e, LN2_LOW)
    y = y - s * 0.5
    return (f + y) + _product(e, LN2_HIGH)


def _exponent(k: Tensor) -> tuple[Tensor, Tensor]:
    """Return floor(log2 k) and its power 2^-floor(log2 k), both as f32, of integers in [1, 2^24]."""
    e = torch.zeros_like(k, dtype=torch.float32)
    scale = torch.ones_like(k, dtype=torch.float32)
    for shift in (16, 8, 4, 2, 1):
        is_large = k >= 2**shift
        k = torch.where(is_large, k >> shift, k)
        e = torch.where(is_large, e + shift, e)
        scale = torch.where(is_large, scale * 2.0**-shift, scale)
    return e, scale


def _cos_sin(word: Tensor) -> tuple[Tensor, Tensor]:
    quadrant = word >> 30
    n = 2 * ((word >> 8) & 0x3FFFFF) - 0x3FFFFF
    t = _product(n.to(torch.float32), ANGLE)
    u = _product(t, t)
    s = t + _product(t, _product(u, _horner(SIN, u)))
    c = (1.0 - u * 0.5) + _product(_product(u, u), _horner(COS, u))
    is_odd = (quadrant & 1) == 1
    cos, sin = torch.where(is_odd, s, c), torch.where(is_odd, c, s)
    cos = torch.where(((quadrant + 1) & 2) == 2, -cos, cos)
    return cos, torch.where((quadrant & 2) == 2, -sin, sin)


def _horner(coefficients: Sequence[float], x: Tensor) -> Tensor:
    value = _product(x, coefficients[0]) + coefficients[1]
    for coefficient in coefficients[2:]:
        value = _product(value, x) + coefficient
    return value


def _product(a: Tensor, b: Tensor | float) -> Tensor:
    """Return the f32 product of f32 values, in a form that no compiler fuses with what follows."""
    wide = b.to(torch.float64) if isinstance(b, Tensor) else b
    return (a.to(torch.float64) * wide).to(torch.float32)
