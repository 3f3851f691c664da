"""Eager meaning of the optimiser operators: the oracle the compiled kernels equal bit for bit.

A step is one `step_scale` over the gradients of all sites, then one update a site. A site's update needs four numbers
of all gradients together, such as their length and how often they were averaged: `factors` f32[4].

Letters: r rank, O outputs of a site; every tensor of a site is f32[r, O].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Partial sums of squares: element e goes to lane e mod 8, so that a kernel adds eight at a time in the same order.
LANES = 8
# Keeps 0 / 0 out where every gradient is zero.
SMALLEST_RMS = 1e-20


def step_scale(
    running: Tensor,
    gradients: Sequence[Tensor],
    losses: Tensor,
    lr: Tensor,
    clip: float,
    beta1: float,
    beta2: float,
    normalise: bool,
    polyak: float,
) -> Tensor:
    """Return what to multiply all gradients by, f32[4]: (scale, norm, 1 / w1, 1 / w2).

    `norm` is the Euclidean length of all gradients together. `scale` is `min(1, clip / norm)`, 1 for clip = 0; where
    `normalise`, it is divided by the running root mean square of the scaled gradients' elements. `w1` and `w2` are the
    weights that running means with decays beta1 and beta2 have gathered: dividing by them corrects the start (Kingma
    and Ba, "Adam: A Method for Stochastic Optimization", section 3) without powers, which libraries round differently.

    A step along the gradient aims to lower the loss by `lr scale norm^2`. Where that is more than `polyak` times the
    mean loss, `scale` is lowered until it is just that (Loizou et al., "Stochastic Polyak Step-size for SGD", equation
    SPS_max with c = 1 / polyak and f* = 0): one rate then serves models of any size, and steps shorten by themselves
    as the loss falls. AdamW, which does not `normalise`, steps by about lr an element, however long the gradient is:
    `lr norm sqrt(elements)` is the most such a step can aim at, and `1 / w1` is lowered in place of `scale`, which its
    steps do not follow.

    Where a loss is not finite, or the norm or the new running mean of squares has no place in f32, scale is 0, norm is
    infinite and nothing changes: every update that reads it leaves its state alone.

    Args:
        running: f32[4], updated in place: running mean of squares, w1, w2, and 0.
        gradients: f32[r, O] of every site.
        losses: f32[B], whose mean the gradients are of.
        lr: f32[].
        clip: Longest gradient, 0 for any.
        beta1: Decay of the running mean of gradients.
        beta2: Decay of the running mean of squares.
        normalise: Whether to divide by the running root mean square.
        polyak: Largest share of the mean loss a step may aim at; 0 for any.

    Raises:
        ValueError: If an argument has the wrong dtype or rank.
    """
    check_step_scale(running, gradients, losses, lr)
    # f64 throughout: one rounding to f32 at the end, of each number that leaves.
    total = float(sum((_sum_of_squares(each) for each in gradients), torch.zeros((), dtype=torch.float64)))
    norm = math.sqrt(total)
    scale = clip / norm if 0.0 < clip < norm else 1.0
    square, w1, w2 = running[:3].tolist()
    count = sum(each.numel() for each in gradients)
    square = beta2 * square + (1.0 - beta2) * ((scale * scale) * (total / count))
    if not all(bool(each.isfinite().all()) for each in (losses, torch.tensor([norm, square]))):
        return torch.tensor([0.0, math.inf, 1.0, 1.0], device=running.device)
    w1 = beta1 * w1 + (1.0 - beta1)
    w2 = beta2 * w2 + (1.0 - beta2)
    running.copy_(torch.tensor([square, w1, w2, 0.0]))
    if normalise:
        scale = scale / (math.sqrt(square / w2) + SMALLEST_RMS)
    aim = float(lr) * scale * total if normalise else float(lr) * norm * math.sqrt(count)
    most = polyak * _mean(losses)
    shorter = most / aim if 0.0 < most < aim else 1.0
    of_scale, of_mean = (shorter, 1.0) if normalise else (1.0, shorter)
    return torch.tensor([scale * of_scale, norm, of_mean / w1, 1.0 / w2], device=running.device)


def sgd_update(master: Tensor, gradient: Tensor, lr: Tensor, factors: Tensor, decay: float) -> Tensor:
    """Apply `master = (1 - lr decay) master - lr (scale gradient)` in f32; return the largest |change|, f32[1].

    With `step_scale(normalise=true)` this is SGD whose steps have one length: lr is how far a weight moves in
    root mean square.

    Args:
        master: f32[r, O], updated in place.
        gradient: f32[r, O].
        lr: f32[].
        factors: f32[4] from `step_scale`; a scale of 0 changes nothing.
        decay: Decoupled weight decay.

    Raises:
        ValueError: If an argument has the wrong dtype or rank.
    """
    _check_site("sgd_update", lr, factors, master=master, gradient=gradient)
    if float(factors[0]) == 0.0:
        return torch.zeros(1)
    return _move(master, gradient * factors[0], lr, decay)


def momentum_update(
    master: Tensor, mean: Tensor, gradient: Tensor, lr: Tensor, factors: Tensor, beta1: float, decay: float
) -> Tensor:
    """As `sgd_update` along `mean / w1`, where `mean = beta1 mean + (1 - beta1) scale gradient`.

    Args:
        master: f32[r, O], updated in place.
        mean: f32[r, O], updated in place.
        gradient: f32[r, O].
        lr: f32[].
        factors: f32[4] from `step_scale`; a scale of 0 changes nothing.
        beta1: Decay of the mean.
        decay: Decoupled weight decay.

    Raises:
        ValueError: If an argument has the wrong dtype or rank.
    """
    _check_site("momentum_update", lr, factors, master=master, mean=mean, gradient=gradient)
    if float(factors[0]) == 0.0:
        return torch.zeros(1)
    keep, add = _pair(beta1)
    mean.copy_(keep * mean + add * (gradient * factors[0]))
    return _move(master, mean * factors[2], lr, decay)


def adamw_update(
    master: Tensor,
    mean: Tensor,
    square: Tensor,
    gradient: Tensor,
    lr: Tensor,
    factors: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
) -> Tensor:
    """AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2) in f32.

    With g = scale gradient: `mean = beta1 mean + (1 - beta1) g`, `square = beta2 square + (1 - beta2) g g`, then
    `master = (1 - lr decay) master - lr ((mean / w1) / (sqrt(square / w2) + eps))`.

    Args:
        master: f32[r, O], updated in place.
        mean: f32[r, O], updated in place.
        square: f32[r, O], updated in place.
        gradient: f32[r, O].
        lr: f32[].
        factors: f32[4] from `step_scale`; a scale of 0 changes nothing.
        beta1: Decay of the mean.
        beta2: Decay of the mean of squares.
        eps: Added to the root.
        decay: Decoupled weight decay.

    Returns:
        The largest |change| of an element, f32[1].

    Raises:
        ValueError: If an argument has the wrong dtype or rank.
    """
    _check_site("adamw_update", lr, factors, master=master, mean=mean, square=square, gradient=gradient)
    if float(factors[0]) == 0.0:
        return torch.zeros(1)
    scaled = gradient * factors[0]
    keep, add = _pair(beta1)
    mean.copy_(keep * mean + add * scaled)
    keep, add = _pair(beta2)
    square.copy_(keep * square + add * (scaled * scaled))
    direction = (mean * factors[2]) / (_root(square * factors[3]) + torch.tensor(eps))
    return _move(master, direction, lr, decay)


def check_step_scale(running: Tensor, gradients: Sequence[Tensor], losses: Tensor, lr: Tensor) -> None:
    """Refuse arguments `step_scale` has no meaning for.

    Raises:
        ValueError: Naming the first argument at fault.
    """
    _check("step_scale", "running", running, (4,))
    if not gradients:
        raise ValueError("prge::step_scale: gradients is empty; expected one a site")
    for each in gradients:
        _check("step_scale", "gradients", each, None)
    _check("step_scale", "losses", losses, (losses.numel(),))
    _check("step_scale", "lr", lr, ())


def _mean(losses: Tensor) -> float:
    """The mean in f64, first loss first."""
    return float(losses.detach().to(torch.float64).cumsum(0)[-1]) / losses.numel()


def _sum_of_squares(gradient: Tensor) -> Tensor:
    """f64[], lane by lane and then over the lanes, first one first."""
    values = gradient.detach().reshape(-1).to(torch.float64)
    padded = torch.nn.functional.pad(values, (0, -len(values) % LANES)).reshape(-1, LANES)
    # A cumulative sum has no other order to add in.
    lanes = (padded * padded).cumsum(0)[-1]
    return lanes.cumsum(0)[-1]


def _root(values: Tensor) -> Tensor:
    """Square root, rounded once: libraries round an f32 root either way, but an f64 root well enough for f32."""
    return values.to(torch.float64).sqrt().to(torch.float32)


def _pair(beta: float) -> tuple[Tensor, Tensor]:
    """Beta and 1 - beta, each rounded once."""
    return torch.tensor(beta), torch.tensor(1.0 - beta)


def _move(master: Tensor, direction: Tensor, lr: Tensor, decay: float) -> Tensor:
    kept = master * (1.0 - lr * torch.tensor(decay)) if decay else master
    moved = kept - lr * direction
    largest = (moved - master).abs().max().reshape(1)
    master.copy_(moved)
    return largest


def _check_site(op: str, lr: Tensor, factors: Tensor, **tensors: Tensor) -> None:
    for name, value in tensors.items():
        _check(op, name, value, tuple(tensors["master"].shape))
    _check(op, "lr", lr, ())
    _check(op, "factors", factors, (4,))


def _check(op: str, name: str, value: Tensor, shape: tuple[int, ...] | None) -> None:
    if value.dtype != torch.float32 or (shape is not None and tuple(value.shape) != shape):
        found = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        raise ValueError(f"prge::{op}: {name} is {found}; expected float32{list(shape) if shape is not None else ''}")
