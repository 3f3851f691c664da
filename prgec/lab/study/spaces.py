"""The trainable parameters of a baseline: all weights, or those that a low-rank method adds to linear layers.

Each low-rank method is a forward hook on an unmodified layer y = x W^T + b:

* `lora`: y + s (x A^T) B, both trained (Hu et al., arXiv 2106.09685).
* `lora-fa`: the same, B alone trained (Zhang et al., arXiv 2308.03303).
* `dora`: m / |W + s B^T A| times the product with W + s B^T A, row by row; A, B and m trained (Liu et al.,
  arXiv 2402.09353).
* `vera`: y + b (d (x A^T)) B with A and B frozen, random and shared by all layers; the vectors d and b trained
  (Kopiczko et al., arXiv 2310.11454).

* `bitfit`: y + c, the vector c trained: what training its bias is, added where a layer has none (Zaken et al.,
  arXiv 2106.10199).

Letters: D input width, O output width, r rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prgec.passes.inject_lora_fa import is_target

# The vector d of VeRA starts here (its authors' choice).
_VERA_START = 0.1


@dataclass(frozen=True)
class Settings:
    """Shape of low-rank methods.

    Attributes:
        rank: r of LoRA, LoRA-FA and DoRA.
        alpha: Their branch is scaled by alpha / r.
        vera_rank: r of VeRA, whose matrices are free.
    """

    rank: int = 16
    alpha: float = 32.0
    vera_rank: int = 256


def full(model: nn.Module, settings: Settings, seed: int) -> list[nn.Parameter]:
    """Train every weight of the model."""
    trained = list(model.parameters())
    for parameter in trained:
        parameter.requires_grad_(True)
    return trained


def lora(model: nn.Module, settings: Settings, seed: int) -> list[nn.Parameter]:
    """Train A and B of every layer."""
    branches = _attach(model, lambda layer, generator: _Lora(layer, settings, generator), seed)
    return [parameter for branch in branches for parameter in branch.parameters()]


def lora_fa(model: nn.Module, settings: Settings, seed: int) -> list[nn.Parameter]:
    """Train B of every layer; A keeps its random start."""
    branches = _attach(model, lambda layer, generator: _Lora(layer, settings, generator), seed)
    trained = []
    for branch in branches:
        assert isinstance(branch, _Lora)
        branch.a_RD.requires_grad_(False)
        trained.append(branch.b_RO)
    return trained


def dora(model: nn.Module, settings: Settings, seed: int) -> list[nn.Parameter]:
    """Train A, B and the length of every row of the weights."""
    branches = _attach(model, lambda layer, generator: _Dora(layer, settings, generator), seed)
    return [parameter for branch in branches for parameter in branch.parameters()]


def vera(model: nn.Module, settings: Settings, seed: int) -> list[nn.Parameter]:
    """Train two vectors of every layer."""
    generator = torch.Generator().manual_seed(seed)
    layers = _layers(model)
    shared_a, shared_b = (
        torch.randn(settings.vera_rank, max(widths), generator=generator) / settings.vera_rank**0.5
        for widths in zip(*((each.in_features, each.out_features) for each in layers), strict=True)
    )
    branches = _attach(model, lambda layer, _: _Vera(layer, shared_a, shared_b), seed)
    return [parameter for branch in branches for parameter in branch.parameters()]


def bitfit(model: nn.Module, settings: Settings, seed: int) -> list[nn.Parameter]:
    """Train a bias of every layer."""
    branches = _attach(model, lambda layer, _: _Bias(layer), seed)
    return [parameter for branch in branches for parameter in branch.parameters()]


def frozen(model: nn.Module, settings: Settings, seed: int) -> list[nn.Parameter]:
    """Train nothing of the model: something beside it is."""
    return []


SPACES: dict[str, Callable[[nn.Module, Settings, int], list[nn.Parameter]]] = {
    "full": full,
    "lora": lora,
    "lora-fa": lora_fa,
    "dora": dora,
    "vera": vera,
    "bitfit": bitfit,
    "frozen": frozen,
}


class _TrainedBranch(nn.Module):
    """The parameters added to one layer."""

    def hook(self, layer: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        """Return what the layer's output becomes."""
        raise NotImplementedError


class _Lora(_TrainedBranch):
    def __init__(self, layer: nn.Linear, settings: Settings, generator: torch.Generator) -> None:
        super().__init__()
        start_RD = torch.randn(settings.rank, layer.in_features, generator=generator) / layer.in_features**0.5
        self.a_RD = nn.Parameter(start_RD)
        self.b_RO = nn.Parameter(torch.zeros(settings.rank, layer.out_features))
        self.scale = settings.alpha / settings.rank

    def hook(self, layer: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        """Return the layer's output with the branch."""
        return output + self.scale * (inputs[0] @ self.a_RD.T) @ self.b_RO


class _Dora(_Lora):
    def __init__(self, layer: nn.Linear, settings: Settings, generator: torch.Generator) -> None:
        super().__init__(layer, settings, generator)
        self.length_O = nn.Parameter(layer.weight.detach().norm(dim=1))

    def hook(self, layer: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        """Return the layer's output with rows of the learned length."""
        bias = 0.0 if layer.bias is None else layer.bias
        moved_OD = layer.weight + self.scale * self.b_RO.T @ self.a_RD
        # The authors keep gradients out of the norm.
        factor_O = self.length_O / moved_OD.detach().norm(dim=1)
        turned: Tensor = factor_O * (super().hook(layer, inputs, output) - bias) + bias
        return turned


class _Vera(_TrainedBranch):
    def __init__(self, layer: nn.Linear, shared_a: Tensor, shared_b: Tensor) -> None:
        super().__init__()
        self._a_RD = (shared_a[:, : layer.in_features],)
        self._b_RO = (shared_b[:, : layer.out_features],)
        self.d_R = nn.Parameter(torch.full((shared_a.shape[0],), _VERA_START))
        self.b_O = nn.Parameter(torch.zeros(layer.out_features))

    def hook(self, layer: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        """Return the layer's output with the branch."""
        return output + self.b_O * ((self.d_R * (inputs[0] @ self._a_RD[0].T)) @ self._b_RO[0])


class _Bias(_TrainedBranch):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.bias_O = nn.Parameter(torch.zeros(layer.out_features))

    def hook(self, layer: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        """Return the layer's output with another bias."""
        return output + self.bias_O


def _layers(model: nn.Module) -> list[nn.Linear]:
    """Every linear layer of the blocks: what `all-linear` means to the compiler."""
    found = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Linear)]
    return [each for name, each in found if is_target(name, ("all-linear",))]


def _attach(
    model: nn.Module, make: Callable[[nn.Linear, torch.Generator], _TrainedBranch], seed: int
) -> list[_TrainedBranch]:
    generator = torch.Generator().manual_seed(seed)
    branches = []
    for layer in _layers(model):
        branch = make(layer, generator)
        layer.register_forward_hook(branch.hook)
        branches.append(branch)
    return branches
