"""ConMeZO: MeZO whose perturbations lie on a cone around a running mean of its own gradient estimates.

Behric, Zhang, Li and Thekumparampil (arXiv 2511.02757), Algorithm 1, and the warm-up of beta that their code
(github.com/LejsDeen/ConMeZO, opt/src/trainer.py) adds to it: with d trained numbers and u ~ N(0, I),

    z = sqrt(d) cos(theta) m / |m| + sin(theta) u,   g = (l+ - l-) / 2 eps,   m <- beta m + (1 - beta) g z

m starts as a random direction. It is one more copy of what is trained, which MeZO does not need.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from prgec.core.contract.calls import Batch
from prgec.errors import UsageError
from prgec.lab.study.mezo import Mezo

# The warm-up: the first beta, the share of it that this lasts, and the shape of the rise.
_FIRST_BETA, _FLAT_SHARE, _EASE, _STEEPNESS, _POWER = 0.1, 0.1, 1.8, 8.0, 3.0


class ConMezo(Mezo):
    """One run of ConMeZO, with one query a step.

    Args:
        model: Checkpoint folder, alias or hub id.
        seed: Seed of the perturbations and of what the space adds.
        space: Row of `SPACES`.
        eps: Perturbation scale.
        theta: Angle of the cone in radians; pi / 2 is MeZO.
        beta: Share of the mean that survives a step, after the warm-up.
        warmup: Steps over which beta rises from 0.1; the authors take a tenth of a run.
        batch_size: Examples a step.
        rank: Rank of low-rank spaces.
        alpha: Their scale.

    Raises:
        UsageError: If there is no such space, or theta or beta is out of range.
    """

    def __init__(
        self,
        model: str,
        *,
        seed: int,
        space: str = "lora-fa",
        eps: float = 1e-2,
        theta: float = 1.35,
        beta: float = 0.99,
        warmup: int = 60,
        batch_size: int = 16,
        rank: int = 16,
        alpha: float = 32.0,
    ) -> None:
        if not (0.0 <= theta <= math.pi / 2 and 0.0 <= beta < 1.0):
            raise UsageError(f"theta is {theta} and beta {beta}; expected 0 to pi/2 and 0 to 1")
        super().__init__(model, seed=seed, space=space, eps=eps, q=1, batch_size=batch_size, rank=rank, alpha=alpha)
        self._theta, self._beta, self._warmup = theta, beta, warmup
        self._steps = 0
        self._mean = self._normal(self._take_seed())

    @torch.no_grad()
    def _train(self, batch: Batch, lr: float) -> float:
        """Run two forwards of B rows, then move the weights and the centre of the cone."""
        direction = self._direction()
        plus, minus = self._two_sided(batch, functools.partial(self._add, direction))
        g = (plus - minus) / (2 * self._eps)
        self._add(direction, -lr * g)
        beta = warm_beta(self._beta, self._steps, self._warmup)
        for mean, z in zip(self._mean, direction, strict=True):
            mean.mul_(beta).add_(z, alpha=(1 - beta) * g)
        self._steps += 1
        return (plus + minus) / 2

    def _direction(self) -> list[Tensor]:
        """Return z, a tensor for each that is trained."""
        noise = self._normal(self._take_seed())
        size = sum(each.numel() for each in noise)
        norm = math.sqrt(sum(float(each.square().sum(dtype=torch.float64)) for each in self._mean))
        along = math.cos(self._theta) * math.sqrt(size) / norm if norm else 0.0
        return [along * mean + math.sin(self._theta) * u for mean, u in zip(self._mean, noise, strict=True)]

    def _normal(self, seed: int) -> list[Tensor]:
        self._generator.manual_seed(seed)
        return [torch.randn(each.shape, generator=self._generator) for each in self.program.trained]

    def _add(self, direction: list[Tensor], scale: float) -> None:
        for parameter, z in zip(self.program.trained, direction, strict=True):
            parameter.add_(z, alpha=scale)

    def _take_seed(self) -> int:
        self._next_seed += 1
        return self._next_seed - 1


def warm_beta(beta: float, steps: int, warmup: int) -> float:
    """Return beta after so many steps: 0.1 for a tenth of the warm-up, then a rise that is quick at first.

    Args:
        beta: Its final value.
        steps: Steps done.
        warmup: Steps of the warm-up.
    """
    if steps >= warmup:
        return beta
    flat = _FLAT_SHARE * warmup
    if steps <= flat:
        return _FIRST_BETA
    progress = math.pow((steps - flat) / (warmup - flat), _EASE)
    return beta - (beta - _FIRST_BETA) / math.pow(1.0 + _STEEPNESS * progress, _POWER)
