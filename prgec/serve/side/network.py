"""The additive adapter network: a stack of small adapters, each of which mixes a block's output into what it passes on.

    S_i = (1 - mu_i) A_i + mu_i h_{i-1},  mu_i = sigmoid(alpha_i);  h_i = S_i + gelu(S_i W_down_i) W_up_i;  h_0 = A_1
    y = rms(h_L) W_head^T

Every A_i is divided by its root mean square first, unless the norm is `none`. alpha, W_up and W_head start at zero, so
a new network adds nothing. After Yang et al., "PAE MobiLLM", section on the additive adapter side-network; docs/side.md
says what the paper leaves open.

Letters: B rows, L blocks, K label positions, D width, C candidates, r rank.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from prgec.core.formats.shards import ShardShape
from prgec.core.formats.side_network import SideNetwork, weight_shapes

# Below any activation of a model; it keeps a row of zeros finite.
_EPSILON = 1e-12


class AdditiveNetwork(nn.Module):
    """The network as PyTorch trains and exports it.

    Args:
        shape: Shape of the shards.
        rank: r.
        norm: `rms` or `none`.
    """

    mean_of: Tensor
    alpha: nn.Parameter
    down: nn.Parameter
    up: nn.Parameter
    head: nn.Parameter

    def __init__(self, shape: ShardShape, rank: int, norm: str) -> None:
        super().__init__()
        self.shape = shape
        self.norm = norm
        for name, sizes in weight_shapes(shape, rank).items():
            self.register_parameter(name, nn.Parameter(torch.zeros(sizes)))
        # A mean over the width as a product, which delegates take.
        self.register_buffer("mean_of", torch.full((1, shape.width), 1.0 / shape.width), persistent=False)

    @classmethod
    def new(cls, shape: ShardShape, rank: int, norm: str, seed: int) -> AdditiveNetwork:
        """Return a network that adds nothing yet."""
        network = cls(shape, rank, norm)
        # Raw PCG64 output is the same in every version and on every machine.
        bits = np.random.PCG64(seed).random_raw(network.down.numel())
        uniform = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        bound = math.sqrt(3.0 / shape.width)
        values = torch.from_numpy((2 * uniform - 1) * np.float32(bound))
        with torch.no_grad():
            network.down.copy_(values.reshape(network.down.shape))
        return network

    @classmethod
    def of(cls, network: SideNetwork) -> AdditiveNetwork:
        """Return a network with the weights of a file."""
        result = cls(network.shape, network.rank, network.norm)
        with torch.no_grad():
            for name, parameter in result.named_parameters():
                parameter.copy_(torch.from_numpy(network.weights[name]))
        return result

    def packed(self) -> SideNetwork:
        """Return the weights as they go to a file."""
        weights = {name: parameter.detach().numpy().copy() for name, parameter in self.named_parameters()}
        return SideNetwork(self.shape, self.norm, weights)

    def forward(self, acts: Tensor) -> Tensor:
        """Return what to add to the scores of the candidates: f32[B, K, C] of f32[B, L, K, D]."""
        blocks = [acts[:, number] for number in range(self.shape.num_blocks)]
        if self.norm == "rms":
            blocks = [rms(block, self.mean_of) for block in blocks]
        mix = torch.sigmoid(self.alpha)
        hidden = blocks[0]
        for number, block in enumerate(blocks):
            mu = mix[number]
            mixed = (1 - mu) * block + mu * hidden
            inner = nn.functional.gelu(mixed @ self.down[number])
            hidden = mixed + inner @ self.up[number]
        return nn.functional.linear(rms(hidden, self.mean_of), self.head)


def rms(values: Tensor, mean_of: Tensor) -> Tensor:
    """Divide rows by their root mean square; `mean_of` is a weight that means over them."""
    mean_square = nn.functional.linear(values * values, mean_of)
    return values * torch.rsqrt(mean_square + _EPSILON)
