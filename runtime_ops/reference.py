"""Eager meaning of the `prge` operators: the oracle the compiled kernels equal bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from prgec.runtime_ops import noise

# Noise f32[q, *shape] of (seed, step, site, q, shape).
Draw: TypeAlias = Callable[[Tensor, Tensor, int, int, Sequence[int]], Tensor]


def randn(seed: Tensor, step: Tensor, site: int, q: int, shape: Sequence[int]) -> Tensor:
    """Return standard normals f32[q, *shape] keyed by (seed, step, site, query, element).

    Args:
        seed: i64[].
        step: i64[].
        site: Number of the LoRA site, in [0, 2^32).
        q: Number of queries, at least 1.
        shape: Shape of one query's noise.

    Raises:
        ValueError: If an argument has the wrong dtype, rank or range.
    """
    check_randn(seed, step, site, q, shape)
    return noise.randn(seed, step, site, q, shape)


def dual_update(master: Tensor, g: Tensor, lr: Tensor, eps: Tensor, seed: Tensor, step: Tensor, site: int) -> Tensor:
    """Apply the update of the step before to `master`, then return its 2q perturbed copies.

    With z_i(t) the noise of query i at step t, in f32 and in this order: `acc = 0`; `acc = acc + g[i] * z_i(step - 1)`
    for every i; `master = master - (lr / q) * acc`; then `master + eps * z_i(step)` and `master - eps * z_i(step)`.
    All-zero g leaves master untouched and zero eps makes every copy equal to master; neither draws noise.

    Args:
        master: f32[r, out], updated in place.
        g: f32[q], projected gradients of step - 1.
        lr: f32[].
        eps: f32[].
        seed: i64[].
        step: i64[], the current step.
        site: Number of the LoRA site, in [0, 2^32).

    Returns:
        f32[2q, r, out]; copy 2i + s belongs to query i and sign s (0: +eps, 1: -eps).

    Raises:
        ValueError: If an argument has the wrong dtype, rank or range.
    """
    check_dual_update(master, g, lr, eps, seed, step, site)
    return dual_update_from(noise.randn, master, g, lr, eps, seed, step, site)


def dual_update_from(
    draw: Draw, master: Tensor, g: Tensor, lr: Tensor, eps: Tensor, seed: Tensor, step: Tensor, site: int
) -> Tensor:
    """`dual_update` of checked arguments with the noise from `draw`."""
    move = perturbation_from(draw, master, g, lr, eps, seed, step, site)
    if not bool(eps != 0):
        return master.repeat(2 * len(move), 1, 1)
    return torch.cat((master + move, master - move), dim=1).flatten(0, 1)


def perturbation(master: Tensor, g: Tensor, lr: Tensor, eps: Tensor, seed: Tensor, step: Tensor, site: int) -> Tensor:
    """Apply the update of the step before to `master` as `dual_update` does; return how far its copies are from it.

    Zero eps draws no noise.

    Args:
        master: f32[r, out], updated in place.
        g: f32[q], projected gradients of step - 1.
        lr: f32[].
        eps: f32[].
        seed: i64[].
        step: i64[], the current step.
        site: Number of the LoRA site, in [0, 2^32).

    Returns:
        `eps * z_i(step)`, f32[q, 1, r, out]; the second dimension is that of the two signs.

    Raises:
        ValueError: If an argument has the wrong dtype, rank or range.
    """
    check_dual_update(master, g, lr, eps, seed, step, site, op="perturbation")
    return perturbation_from(noise.randn, master, g, lr, eps, seed, step, site)


def perturbation_from(
    draw: Draw, master: Tensor, g: Tensor, lr: Tensor, eps: Tensor, seed: Tensor, step: Tensor, site: int
) -> Tensor:
    """`perturbation` of checked arguments with the noise from `draw`."""
    q = g.shape[0]
    if bool((g != 0).any()):
        z = draw(seed, step - 1, site, q, master.shape)
        acc = torch.zeros_like(master)
        for i in range(q):
            acc = acc + g[i] * z[i]
        # A tensor divisor: by a Python number, some devices multiply with its rounded inverse.
        master.copy_(master - (lr / torch.full_like(lr, q)) * acc)
    if not bool(eps != 0):
        return master.new_zeros((q, 1, *master.shape))
    return (eps * draw(seed, step, site, q, master.shape)).unsqueeze(1)


def check_randn(seed: Tensor, step: Tensor, site: int, q: int, shape: Sequence[int]) -> None:
    """Refuse arguments `randn` has no meaning for.

    Raises:
        ValueError: Naming the first argument at fault.
    """
    _check_key("randn", seed, step, site)
    if q < 1:
        raise ValueError(f"prge::randn: q is {q}; expected at least 1")
    if any(extent < 0 for extent in shape):
        raise ValueError(f"prge::randn: shape is {list(shape)}; expected no negative extent")


def check_dual_update(
    master: Tensor, g: Tensor, lr: Tensor, eps: Tensor, seed: Tensor, step: Tensor, site: int, op: str = "dual_update"
) -> None:
    """Refuse arguments that operator has no meaning for; looks at dtypes and shapes only, never at values.

    Raises:
        ValueError: Naming the first argument at fault.
    """
    _check_tensor(op, "master", master, torch.float32, 2)
    _check_tensor(op, "g", g, torch.float32, 1)
    _check_tensor(op, "lr", lr, torch.float32, 0)
    _check_tensor(op, "eps", eps, torch.float32, 0)
    _check_key(op, seed, step, site)
    if g.shape[0] < 1:
        raise ValueError(f"prge::{op}: g is empty; expected one value per query")


def _check_key(op: str, seed: Tensor, step: Tensor, site: int) -> None:
    _check_tensor(op, "seed", seed, torch.int64, 0)
    _check_tensor(op, "step", step, torch.int64, 0)
    if not 0 <= site < 2**32:
        raise ValueError(f"prge::{op}: site is {site}; expected 0 <= site < 2^32")


def _check_tensor(op: str, name: str, value: Tensor, dtype: torch.dtype, rank: int) -> None:
    if value.dtype != dtype or value.dim() != rank:
        found = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        expected = f"{str(dtype).removeprefix('torch.')} of rank {rank}"
        raise ValueError(f"prge::{op}: {name} is {found}; expected {expected}")
