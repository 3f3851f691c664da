"""MeZO as published: one perturbation after another, in place, drawn again from a seed instead of stored.

Malladi et al., "Fine-Tuning Language Models with Just Forward Passes" (arXiv 2305.17333), Algorithm 1; with q > 1 its
Algorithm 2 (n-SPSA). Over any space of `spaces.py`; with all weights it is the memory-free full fine-tuning.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from prgec.core.contract.calls import Batch
from prgec.errors import NumericsError
from prgec.lab.study.baseline import Baseline
from prgec.lab.study.eager import EagerProgram
from prgec.lab.study.spaces import Settings

# Seeds of the perturbations of a run: a large odd stride keeps runs apart.
_STRIDE = 1_000_003


class Mezo(Baseline):
    """One run of sequential MeZO.

    Args:
        model: Checkpoint folder, alias or hub id.
        seed: Seed of the perturbations and of what the space adds.
        space: Row of `SPACES`.
        eps: Perturbation scale.
        q: Queries a step.
        batch_size: Examples a step.
        seq_len: T, the largest number of tokens of a row.
        rank: Rank of low-rank spaces.
        alpha: Their scale.
        vera_rank: Rank of VeRA.
    """

    def __init__(
        self,
        model: str,
        *,
        seed: int,
        space: str = "full",
        eps: float = 1e-3,
        q: int = 1,
        batch_size: int = 16,
        seq_len: int = 64,
        rank: int = 16,
        alpha: float = 32.0,
        vera_rank: int = 256,
    ) -> None:
        settings = Settings(rank, alpha, vera_rank)
        program = EagerProgram(model, space=space, seed=seed, batch_size=batch_size, seq_len=seq_len, settings=settings)
        super().__init__(program, 2 * q * batch_size)
        self._eps, self._q = eps, q
        self._next_seed = seed * _STRIDE
        self._generator = torch.Generator()

    @torch.no_grad()
    def _train(self, batch: Batch, lr: float) -> float:
        """Run 2q forwards of B rows, then move the weights."""
        seeds = range(self._next_seed, self._next_seed + self._q)
        self._next_seed += self._q
        g, losses = [], []
        for seed in seeds:
            plus, minus = self._two_sided(batch, functools.partial(self._move, seed))
            g.append((plus - minus) / (2 * self._eps))
            losses += [plus, minus]
        for seed, each in zip(seeds, g, strict=True):
            self._move(seed, -lr / self._q * each)
        return sum(losses) / len(losses)

    def _two_sided(self, batch: Batch, move: Callable[[float], None]) -> tuple[float, float]:
        """Return the losses at +eps and -eps along what `move` adds a multiple of; the weights end where they were.

        Raises:
            NumericsError: If one is not finite.
        """
        move(self._eps)
        plus = float(self.program.losses(batch).mean())
        move(-2 * self._eps)
        minus = float(self.program.losses(batch).mean())
        move(self._eps)
        if not (math.isfinite(plus) and math.isfinite(minus)):
            raise NumericsError("the loss is not finite", hint="lower lr or eps")
        return plus, minus

    def _move(self, seed: int, scale: float) -> None:
        """Add scale * z(seed) to the weights, one tensor at a time."""
        self._generator.manual_seed(seed)
        for parameter in self.program.trained:
            parameter.add_(torch.randn(parameter.shape, generator=self._generator), alpha=scale)
