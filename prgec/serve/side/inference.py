"""A learnt network as a device runs it: the sums of `AdditiveNetwork`, spelled so that one delegate takes them all.

Delegates multiply by weights that are constants of their own, and cut a tensor but do not index it. So each block has
its weights to itself, transposed for `linear`, and the mixes are numbers by now.

Letters: B rows a call, L blocks, K label positions, D width, C candidates, r rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prgec.serve.side.network import AdditiveNetwork, rms


class InferenceNetwork(nn.Module):
    """The function of `AdditiveNetwork`, with nothing left to learn.

    Args:
        network: The learnt network.
    """

    mean_of: Tensor

    def __init__(self, network: AdditiveNetwork) -> None:
        super().__init__()
        self.norm = network.norm
        self.mixes = torch.sigmoid(network.alpha.detach()).tolist()
        self.down, self.up = (nn.ParameterList(_transposed(weight)) for weight in (network.down, network.up))
        self.head = _constant(network.head)
        self.register_buffer("mean_of", network.mean_of, persistent=False)

    def forward(self, acts: Tensor) -> Tensor:
        """Return what to add to the scores of the candidates: f32[B, K, C] of f32[B, L, K, D]."""
        num_rows, _, num_labels, width = acts.shape
        hidden = None
        for number, (mu, down, up) in enumerate(zip(self.mixes, self.down, self.up, strict=True)):
            block = acts[:, number : number + 1].reshape(num_rows, num_labels, width)
            if self.norm == "rms":
                block = rms(block, self.mean_of)
            mixed = block if hidden is None else block * (1 - mu) + hidden * mu
            inner = nn.functional.gelu(nn.functional.linear(mixed, down))
            hidden = mixed + nn.functional.linear(inner, up)
        assert hidden is not None
        return nn.functional.linear(rms(hidden, self.mean_of), self.head)


def _constant(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.detach().clone(memory_format=torch.contiguous_format), requires_grad=False)


def _transposed(weights: Tensor) -> list[nn.Parameter]:
    return [_constant(each.T) for each in weights]
