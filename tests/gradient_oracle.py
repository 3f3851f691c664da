"""Textbook training along gradients of PyTorch's autograd: what a program with gradients of its own has to follow.

The model is Hugging Face's own, LoRA-FA attached by forward hooks (`tests/autograd.py`). The shortcut is its
definition: autograd in the last trained block, and below it the gradient at that block's input for every layer that
writes to the residual stream. Update rules are written as their papers and decision 014 have them, in f64.

Letters: B examples a step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from prgec.core.contract.manifest import Manifest
from tests.autograd import STREAMS, LoraFa

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class GradientOracle:
    """A run on `model`, which gets hooks, as a program's manifest describes it.

    Args:
        model: Hugging Face causal LM.
        manifest: Names the sites, the method and the update rule.
    """

    def __init__(self, model: nn.Module, manifest: Manifest) -> None:
        zeros = {site.name: torch.zeros(manifest.rank, site.out_features) for site in manifest.sites}
        self._lora = LoraFa(model, zeros, alpha=manifest.alpha, a_seed=manifest.a_seed)
        self._manifest = manifest
        # Largest share of the loss that a step may aim to take away.
        self._polyak = 5.0 if manifest.optimizer == "adamw" else 0.2
        self._rule = _RULES[manifest.optimizer]()
        self._block, self._written_by = _below_last(model, manifest) if manifest.method == "shortcut" else ("", {})

    def losses(self, rows: Sequence[Tensor]) -> Tensor:
        """Loss of each row under the present B: f32[B]."""
        with torch.no_grad():
            return self._lora.losses(*rows)

    def gradients(self, rows: Sequence[Tensor]) -> dict[str, Tensor]:
        """Gradient of the mean loss by every B, in the order of the sites, under the present B."""
        found = self._lora.gradients(rows)
        return found | (self._lora.handed_down(rows, self._block, self._written_by) if self._written_by else {})

    def state(self) -> dict[str, Tensor]:
        """Copies of B by site."""
        return {name: leaf.detach().clone() for name, leaf in self._lora.leaves.items()}

    def put(self, state: Mapping[str, Tensor]) -> None:
        """Overwrite B."""
        with torch.no_grad():
            for name, leaf in self._lora.leaves.items():
                leaf.copy_(state[name])

    def step(self, rows: Sequence[Tensor], lr: float) -> Tensor:
        """Take one step; return the losses before it: f32[B]."""
        losses = self.losses(rows)
        gradients = {name: each.to(torch.float64) for name, each in self.gradients(rows).items()}
        moves = self._rule.moves(gradients, lr, self._polyak * float(losses.mean()))
        self.put({name: b.to(torch.float64) - moves[name] for name, b in self.state().items()})
        return losses


class _Norm:
    """Steps of one length, which aim to lower the loss by at most a share of itself."""

    def __init__(self) -> None:
        self.square = 0.0
        self.steps = 0

    def scaled(self, gradients: Mapping[str, Tensor], lr: float, most: float) -> dict[str, Tensor]:
        """Gradients over their running root mean square, or shorter."""
        total = float(sum(each.square().sum() for each in gradients.values()))
        self.steps += 1
        self.square = BETA2 * self.square + (1 - BETA2) * total / sum(each.numel() for each in gradients.values())
        scale = 1 / math.sqrt(self.square / (1 - BETA2**self.steps))
        scale = min(scale, most / (lr * total))
        return {name: scale * each for name, each in gradients.items()}

    def moves(self, gradients: Mapping[str, Tensor], lr: float, most: float) -> dict[str, Tensor]:
        """Return the step to subtract from every B."""
        return {name: lr * each for name, each in self.scaled(gradients, lr, most).items()}


class _Momentum(_Norm):
    """The same along a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.means: dict[str, Tensor] = {}

    def moves(self, gradients: Mapping[str, Tensor], lr: float, most: float) -> dict[str, Tensor]:
        """Return the step to subtract from every B."""
        for name, each in self.scaled(gradients, lr, most).items():
            self.means[name] = BETA1 * self.means.get(name, torch.zeros_like(each)) + (1 - BETA1) * each
        return {name: lr * mean / (1 - BETA1**self.steps) for name, mean in self.means.items()}


class _AdamW:
    """PyTorch's own, without decay, at a rate bounded by what a step of its length can aim at."""

    def __init__(self) -> None:
        self.leaves: dict[str, Tensor] = {}
        self.optimizer: torch.optim.Optimizer | None = None

    def moves(self, gradients: Mapping[str, Tensor], lr: float, most: float) -> dict[str, Tensor]:
        """Return the step to subtract from every B."""
        if self.optimizer is None:
            self.leaves = {name: torch.zeros_like(each) for name, each in gradients.items()}
            self.optimizer = torch.optim.AdamW(
                self.leaves.values(), betas=(BETA1, BETA2), eps=EPS, weight_decay=0.0, foreach=False
            )
        for name, leaf in self.leaves.items():
            leaf.zero_().grad = gradients[name]
        squares = sum(float(each.square().sum()) for each in gradients.values())
        longest = math.sqrt(squares * sum(each.numel() for each in gradients.values()))
        self.optimizer.param_groups[0]["lr"] = min(lr, most / longest)
        self.optimizer.step()
        return {name: -leaf.detach() for name, leaf in self.leaves.items()}


_RULES: dict[str, type[_Norm | _Momentum | _AdamW]] = {"norm": _Norm, "momentum": _Momentum, "adamw": _AdamW}


def _below_last(model: nn.Module, manifest: Manifest) -> tuple[str, dict[str, str]]:
    """Path of the last trained block, and which module's output each site below it adds to the stream."""
    stream = STREAMS[str(model.config.model_type)]  # type: ignore[union-attr]  # transformers' models have a config
    in_block = re.compile(rf"{re.escape(stream.blocks)}\.(\d+)\.")
    names = [site.name for site in manifest.sites]
    last = max(int(found[1]) for name in names if (found := in_block.match(name)))
    written_by = {name: module for name, module in stream.written_below(last).items() if name in names}
    return f"{stream.blocks}.{last}", written_by
