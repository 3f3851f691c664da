"""Textbook MeZO with q queries on an unmodified Hugging Face model: what a compiled program has to follow.

papers: P-RGE, Algorithm 1 and Algorithm 3 ("MeZO with q > 1"), over LoRA-FA's B matrices. Every query adds eps times
its noise to the real weights, runs the model, subtracts it, runs the model again; then the weights move. Nothing here
is batched over queries or signs, no row is padded, and nothing is shared with the compiler but the two functions that
define the random numbers: `noise.randn` and `lora_a`.

The weights are built from the untouched base each time, in f64, and rounded once to the model's own dtype. Adding and
subtracting in place, as published, would leave the rounding of thousands of additions in the weights.

Letters: q queries, B examples a step, T tokens, D input width, O output width, r rank, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prgec.runtime_ops import noise
from prgec.runtime_ops.lora import lora_a


@dataclass(frozen=True)
class Example:
    """One training example.

    Attributes:
        prompt: Ids the model is given, at least one.
        completion: Ids it shall predict, at least one.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """The parts of a run.

    Attributes:
        q: Queries a step.
        eps: Perturbation scale.
        seed: Key of the noise.
        rank: r.
        alpha: The change of a weight is alpha / r times (A^T B)^T.
        a_seed: Seed of the frozen A matrices.
    """

    q: int
    eps: float
    seed: int
    rank: int
    alpha: float
    a_seed: int


class _Site:
    """One linear layer whose weight moves along (A^T B)^T; GPT-2's Conv1D holds its weight as [D, O]."""

    def __init__(self, layer: nn.Module, index: int, settings: Settings) -> None:
        weight = layer.weight
        assert isinstance(weight, nn.Parameter)
        self.weight_OD = weight.data if isinstance(layer, nn.Linear) else weight.data.T
        self.base_OD = self.weight_OD.to(torch.float64).clone()
        out_features, in_features = self.base_OD.shape
        self.a_RD = lora_a(settings.a_seed, index, settings.rank, in_features).to(torch.float64)
        self.b_RO = torch.zeros(settings.rank, out_features, dtype=torch.float64)
        self.index = index
        self.settings = settings

    def noise(self, step: int) -> Tensor:
        """Return z of every query: f64[q, r, O]."""
        key = torch.tensor(self.settings.seed), torch.tensor(step)
        return noise.randn(*key, self.index, self.settings.q, self.b_RO.shape).to(torch.float64)

    def set_weight(self, shift_RO: Tensor | float) -> None:
        """Give the layer the weight of B + shift."""
        scale = self.settings.alpha / self.settings.rank
        change_OD = scale * (self.a_RD.T @ (self.b_RO + shift_RO)).T
        self.weight_OD.copy_(self.base_OD + change_OD)


class Mezo:
    """A run of MeZO on `model`, whose weights it changes.

    Args:
        model: Hugging Face causal LM. Its dtype is the one all forwards run in.
        sites: Module paths of the linear layers to train; the position in the list is the site of the noise.
        settings: The run.
    """

    def __init__(self, model: nn.Module, sites: Sequence[str], settings: Settings) -> None:
        self.model = model
        self.settings = settings
        self.sites = {name: _Site(_linear(model, name), index, settings) for index, name in enumerate(sites)}

    @torch.no_grad()
    def step(self, number: int, examples: Sequence[Example], lr: float) -> Tensor:
        """Run one step and move the weights.

        Args:
            number: Number of the step: the key of its noise.
            examples: B examples.
            lr: Learning rate of this step.

        Returns:
            The losses before the move: f64[q, 2, B], sign 0 being plus.
        """
        q, eps = self.settings.q, self.settings.eps
        z_of = {name: site.noise(number) for name, site in self.sites.items()}
        losses = torch.empty(q, 2, len(examples), dtype=torch.float64)
        for query in range(q):
            for sign, scale in enumerate((eps, -eps)):
                for name, site in self.sites.items():
                    site.set_weight(scale * z_of[name][query])
                losses[query, sign] = self.losses(examples)
        g_q = (losses[:, 0].mean(dim=1) - losses[:, 1].mean(dim=1)) / (2 * eps)
        for name, site in self.sites.items():
            for query in range(q):
                site.b_RO -= lr / q * g_q[query] * z_of[name][query]
            site.set_weight(0.0)
        return losses

    @torch.no_grad()
    def losses(self, examples: Sequence[Example]) -> Tensor:
        """Return the mean negative log-likelihood of each example's completion under the present weights: f64[B]."""
        return torch.stack([self._loss(example) for example in examples])

    def masters(self) -> dict[str, Tensor]:
        """Return B of every site by module path: f64[r, O]."""
        return {name: site.b_RO.clone() for name, site in self.sites.items()}

    def _loss(self, example: Example) -> Tensor:
        ids = torch.tensor([[*example.prompt, *example.completion]])
        output: Any = self.model(input_ids=ids)
        # The logits at a position predict the token after it.
        predictions_KV = output.logits[0, len(example.prompt) - 1 : -1].to(torch.float64)
        total = torch.zeros((), dtype=torch.float64)
        for logits_V, target in zip(predictions_KV, example.completion, strict=True):
            largest = logits_V.max()
            total += largest + (logits_V - largest).exp().sum().log() - logits_V[target]
        return total / len(example.completion)


def _linear(model: nn.Module, name: str) -> nn.Module:
    layer = model.get_submodule(name)
    kind = type(layer).__name__
    assert kind in ("Linear", "Conv1D"), f"{name} is {kind}; expected a linear layer"
    return layer
