"""Write the optimiser's step as ATen arithmetic, for runtimes without the kernels of prgec.

Before:
    %s: f32[4] = prge.step_scale(@prge_optimizer, [%g0, %g1, ...], %loss, lr, clip, beta1, beta2, normalise, polyak)
    %0: f32[1] = prge.sgd_update(@site.lora_B, %g0, lr, %s, decay)
    ...
After:
    ...  the norm of all gradients, the scale, and the new running means, f32[8]
    %s: f32[4] = aten.slice(%n, 0, 0, 4);  copy_(@prge_optimizer, aten.slice(%n, 0, 4, 8))
    ...  %1: f32[r, O] = aten.where(scale is 0, @site.lora_B, what the rule makes of it);  copy_(@site.lora_B, %1)
    ...

A call with lr = 0 changes no state at all, its running means included: with one method, that is how a host evaluates.

Requires: nothing. Ensures: no op of prge is left that takes a step.
Numerics: ROUNDING (sums of squares in another order); with lr = 0 as above.
Why: a delegate that compiles the whole step, AOTInductor's among them, can compile ATen and calls nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.fx import Node

from prgec.passes.infra import Pass, PassResult, Role, Tier, rounding
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.runtime_ops import library as _registers_prge_ops  # noqa: F401 - torch.ops.prge exists only after it
from prgec.runtime_ops.optimizers import SMALLEST_RMS

aten = torch.ops.aten
prge = torch.ops.prge

_SCALE, _CORRECTION1, _CORRECTION2, _NUM_FACTORS = 0, 2, 3, 4


@dataclass(frozen=True)
class DecomposeOptimizer(Pass):
    """Replace `prge::step_scale` and the updates that follow it."""

    name: ClassVar[str] = "decompose-optimizer"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.GRADIENTS
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"insert-optimizer"})

    def requires(self, program: GraphProgram) -> Sequence[str]:
        """Every step is one call."""
        gathered = any(program.calls(prge.accumulate.default))
        return ["a step of several calls needs the kernels of prgec; leave out --accumulate"] if gathered else []

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite the scale and every update, in graph order."""
        rewriter = Rewriter(program, self.name)
        scales = list(program.calls(prge.step_scale.default))
        for node in scales:
            _write_scale(rewriter, node)
        updates = list(program.calls(*_UPDATES))
        for node in updates:
            _write_update(rewriter, node, *_UPDATES[node.target])
        hits = len(scales) + len(updates)
        return PassResult(program, hits > 0, hits)

    def ensures(self, program: GraphProgram) -> list[str]:
        """Nothing is updated by our own ops."""
        left = program.calls(prge.step_scale.default, *_UPDATES)
        return [f"%{node.name} is still an op of prge" for node in left]


def _write_scale(rewriter: Rewriter, node: Node) -> None:
    running, gradients, losses, lr, *numbers = node.args
    function = partial(_scaled, numbers=numbers)
    with rewriter.before(node):
        both = rewriter.inline(lambda *tensors: function(*tensors), running, losses, lr, *gradients)  # type: ignore[misc, arg-type]
        factors, new = (rewriter.call(aten.slice.Tensor, both, 0, at, at + _NUM_FACTORS) for at in (0, _NUM_FACTORS))
        rewriter.call(aten.copy_.default, running, new)
    rewriter.replace(node, factors)


def _write_update(rewriter: Rewriter, node: Node, num_states: int, rule: Callable[..., Sequence[Tensor]]) -> None:
    tensors, numbers = node.args[: num_states + 3], node.args[num_states + 3 :]
    states, factors = tensors[:num_states], tensors[-1]
    with rewriter.before(node):
        new = rewriter.inline(lambda *each: torch.stack(list(rule(*each, *numbers))), *tensors)  # type: ignore[arg-type]
        skips = rewriter.inline(lambda each: each[_SCALE] == 0.0, factors)  # type: ignore[arg-type]
        for index, state in enumerate(states):
            moved = rewriter.call(aten.select.int, new, 0, index)
            rewriter.call(aten.copy_.default, state, rewriter.call(aten.where.self, skips, state, moved))
    rewriter.erase(node)


def _scaled(running: Tensor, losses: Tensor, lr: Tensor, *gradients: Tensor, numbers: Sequence[Any]) -> Tensor:
    """`prge::step_scale` as a value: its factors, then what `running` becomes, f32[8]; see its reference."""
    clip, beta1, beta2, normalise, polyak = numbers
    total = torch.stack([each.double().square().sum() for each in gradients]).sum()
    norm = total.sqrt()
    scale = torch.where(norm > clip, clip / norm, 1.0) if clip > 0 else torch.ones_like(norm)
    means = running.double()
    count = sum(each.numel() for each in gradients)
    square = beta2 * means[0] + (1.0 - beta2) * (scale * scale * (total / count))
    w1, w2 = beta1 * means[1] + (1.0 - beta1), beta2 * means[2] + (1.0 - beta2)
    if normalise:
        scale = scale / ((square / w2).sqrt() + SMALLEST_RMS)
    aim = lr * scale * total if normalise else lr * norm * count**0.5
    most = polyak * losses.double().mean()
    shorter = torch.where((most > 0.0) & (most < aim), most / aim, 1.0)
    of_scale, of_mean = (shorter, 1.0) if normalise else (1.0, shorter)
    reported = torch.stack([norm, square]).float()
    is_finite = torch.cat([losses.isfinite(), reported.isfinite()]).all()
    moves = is_finite & (lr != 0.0)
    factors = torch.stack(
        [
            torch.where(moves, scale * of_scale, 0.0),
            torch.where(is_finite, norm, torch.inf),
            torch.where(moves, of_mean / w1, 1.0),
            torch.where(moves, 1.0 / w2, 1.0),
        ]
    ).float()
    new = torch.stack([square, w1, w2, torch.zeros_like(w1)]).float()
    return torch.cat([factors, torch.where(moves, new, running)])


def _sgd(master: Tensor, gradient: Tensor, lr: Tensor, factors: Tensor, decay: float) -> list[Tensor]:
    return [_moved(master, gradient * factors[_SCALE], lr, decay)]


def _momentum(
    master: Tensor, mean: Tensor, gradient: Tensor, lr: Tensor, factors: Tensor, beta1: float, decay: float
) -> list[Tensor]:
    mean = beta1 * mean + (1.0 - beta1) * (gradient * factors[_SCALE])
    return [_moved(master, mean * factors[_CORRECTION1], lr, decay), mean]


def _adamw(
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
) -> list[Tensor]:
    scaled = gradient * factors[_SCALE]
    mean = beta1 * mean + (1.0 - beta1) * scaled
    square = beta2 * square + (1.0 - beta2) * (scaled * scaled)
    direction = (mean * factors[_CORRECTION1]) / ((square * factors[_CORRECTION2]).sqrt() + eps)
    return [_moved(master, direction, lr, decay), mean, square]


def _moved(master: Tensor, direction: Tensor, lr: Tensor, decay: float) -> Tensor:
    return (master * (1.0 - lr * decay) if decay else master) - lr * direction


_UPDATES: dict[Any, tuple[int, Callable[..., Sequence[Tensor]]]] = {
    prge.sgd_update.default: (1, _sgd),
    prge.momentum_update.default: (2, _momentum),
    prge.adamw_update.default: (3, _adamw),
}
