"""Sequential MeZO in PyTorch on the Hugging Face model: 2q forwards a step, LoRA-FA beside every linear layer.

The step is complete: noise, perturbation, forwards, coefficients and update. z is kept instead of drawn three times,
which costs memory the size of B and is faster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import LossModel, load_model
from prgec.compiler.options import CompileOptions
from prgec.lab.bench.job import EPS, LR
from prgec.passes.inject_lora_fa import is_target
from prgec.passes.layer_choice import chosen
from prgec.runtime_ops.lora import lora_a


class _Branch:
    """A forward hook that adds `x A^T B`; A f32[r, D] holds alpha/r, B is f32[r, O]."""

    def __init__(self, a_RD: Tensor, out_features: int) -> None:
        self._a_DR = a_RD.T.contiguous()
        self.b_RO = torch.zeros(a_RD.shape[0], out_features, device=a_RD.device)

    def __call__(self, module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        # The branch is f32 whatever the model is, as it is in compiled programs.
        branch = (inputs[0].to(torch.float32) @ self._a_DR) @ self.b_RO
        return output + branch.to(output.dtype)


class EagerMezo:
    """The optimiser with its model.

    Args:
        model: Causal LM from `load_model`; left as it is but for forward hooks.
        rows: Tokens i64[B, T], label positions i64[B, K], targets i64[B, K].
        q: Queries a step.
        layers: Blocks to train.
    """

    def __init__(
        self, model: nn.Module, rows: Sequence[Tensor], q: int, layers: tuple[str, ...] = CompileOptions.layers
    ) -> None:
        self._loss = LossModel(model).eval()
        self._rows = rows
        self._q = q
        self._branches = attach_branches(model, layers)
        self._generator = torch.Generator(self.state[0].device).manual_seed(0)

    @classmethod
    def load(cls, model: str, rows: Sequence[Tensor], q: int, layers: tuple[str, ...]) -> EagerMezo:
        """Load the checkpoint a user names `model`."""
        return cls(load_model(find_checkpoint(model)), rows, q, layers)

    @property
    def state(self) -> list[Tensor]:
        """B of every site."""
        return [branch.b_RO for branch in self._branches]

    @torch.no_grad()
    def step(self) -> None:
        """Perform one step: 2q forwards of B rows, then the update."""
        with all_cores():
            update = [torch.zeros_like(b_RO) for b_RO in self.state]
            for _ in range(self._q):
                z = [torch.randn(b_RO.shape, generator=self._generator, device=b_RO.device) for b_RO in self.state]
                g = self._projected_gradient(z)
                torch._foreach_add_(update, z, alpha=g)
            torch._foreach_add_(self.state, update, alpha=-LR / self._q)

    def _projected_gradient(self, z: list[Tensor]) -> float:
        torch._foreach_add_(self.state, z, alpha=EPS)
        plus = self._loss(*self._rows).mean()
        torch._foreach_add_(self.state, z, alpha=-2 * EPS)
        minus = self._loss(*self._rows).mean()
        torch._foreach_add_(self.state, z, alpha=EPS)
        return float(plus - minus) / (2 * EPS)


def attach_branches(model: nn.Module, layers: tuple[str, ...]) -> list[_Branch]:
    """Give every layer a compilation trains a LoRA-FA branch with B = 0, and return the branches."""
    return [_attach(module, index) for index, module in enumerate(_sites(model, layers))]


def _sites(model: nn.Module, layers: tuple[str, ...]) -> list[nn.Module]:
    """Layers a compilation trains: every linear one of the chosen blocks."""
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    targets = [name for name in linears if is_target(name, CompileOptions.targets)]
    return [model.get_submodule(name) for name in chosen(targets, layers)]


def _attach(module: nn.Module, index: int) -> _Branch:
    weight = module.weight
    assert isinstance(weight, Tensor)
    out_features, in_features = weight.shape if isinstance(module, nn.Linear) else weight.shape[::-1]
    rank, alpha = CompileOptions.rank, CompileOptions.alpha
    a_RD = lora_a(CompileOptions.a_seed, index, rank, in_features) * (alpha / rank)
    branch = _Branch(a_RD.to(weight.device), out_features)
    module.register_forward_hook(branch)
    return branch


@contextmanager
def all_cores() -> Iterator[None]:
    """Let PyTorch use every core this process may, as the runtime of compiled programs does."""
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
