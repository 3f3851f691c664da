"""Steps in PyTorch that train every weight of the Hugging Face model, as the P-RGE paper's Table 6 compares them.

* First order: one forward and one backward of B rows, SGD.
* MeZO (Malladi et al., 2023, Algorithm 1): 2q forwards of B rows; the weights are perturbed in place with noise that is
  drawn again from its seed, three times a query, so that it takes no memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import LossModel, load_model
from prgec.lab.bench.eager import all_cores
from prgec.lab.bench.job import EPS, LR


class FullFirstOrder:
    """SGD over all weights.

    Args:
        model: Causal LM from `load_model`.
        rows: Tokens i64[B, T], label positions i64[B, K], targets i64[B, K].
    """

    def __init__(self, model: nn.Module, rows: Sequence[Tensor]) -> None:
        self._loss = LossModel(model).eval()
        self._rows = rows
        self._optimizer = torch.optim.SGD([each.requires_grad_() for each in model.parameters()], lr=LR)

    @classmethod
    def load(cls, model: str, rows: Sequence[Tensor]) -> FullFirstOrder:
        """Load the checkpoint a user names `model`."""
        return cls(load_model(find_checkpoint(model)), rows)

    def step(self) -> None:
        """Perform one step."""
        with all_cores():
            self._optimizer.zero_grad(set_to_none=True)
            self._loss(*self._rows).mean().backward()
            self._optimizer.step()


class FullMezo:
    """MeZO over all weights.

    Args:
        model: Causal LM from `load_model`.
        rows: Tokens i64[B, T], label positions i64[B, K], targets i64[B, K].
        q: Queries a step.
    """

    def __init__(self, model: nn.Module, rows: Sequence[Tensor], q: int) -> None:
        self._loss = LossModel(model).eval()
        self._rows = rows
        self._q = q
        self.weights = list(model.parameters())
        self._next_seed = 0

    @classmethod
    def load(cls, model: str, rows: Sequence[Tensor], q: int) -> FullMezo:
        """Load the checkpoint a user names `model`."""
        return cls(load_model(find_checkpoint(model)), rows, q)

    @torch.no_grad()
    def step(self) -> None:
        """Perform one step."""
        with all_cores():
            projected = [(seed, self._projected_gradient(seed)) for seed in self._seeds()]
            for seed, g in projected:
                self._add_noise(seed, -LR * g / self._q)

    def _seeds(self) -> range:
        first = self._next_seed
        self._next_seed += self._q
        return range(first, self._next_seed)

    def _projected_gradient(self, seed: int) -> float:
        self._add_noise(seed, EPS)
        plus = self._loss(*self._rows).mean()
        self._add_noise(seed, -2 * EPS)
        minus = self._loss(*self._rows).mean()
        self._add_noise(seed, EPS)
        return float(plus - minus) / (2 * EPS)

    def _add_noise(self, seed: int, scale: float) -> None:
        generator = torch.Generator(self.weights[0].device).manual_seed(seed)
        for weight in self.weights:
            weight.add_(torch.randn(weight.shape, generator=generator, device=weight.device), alpha=scale)
