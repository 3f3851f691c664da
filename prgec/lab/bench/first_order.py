"""First order in PyTorch on the Hugging Face model: one forward and one backward of B rows, Adam over LoRA-FA."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import LossModel, load_model
from prgec.lab.bench.eager import all_cores, attach_branches
from prgec.lab.bench.job import LR


class EagerFirstOrder:
    """The optimiser with its model.

    Args:
        model: Causal LM from `load_model`; left as it is but for forward hooks.
        rows: Tokens i64[B, T], label positions i64[B, K], targets i64[B, K].
        layers: Blocks to train.
    """

    def __init__(self, model: nn.Module, rows: Sequence[Tensor], layers: tuple[str, ...]) -> None:
        self._loss = LossModel(model).eval()
        self._rows = rows
        trained = [branch.b_RO.requires_grad_() for branch in attach_branches(model, layers)]
        self._optimizer = torch.optim.Adam(trained, lr=LR)

    @classmethod
    def load(cls, model: str, rows: Sequence[Tensor], layers: tuple[str, ...]) -> EagerFirstOrder:
        """Load the checkpoint a user names `model`."""
        return cls(load_model(find_checkpoint(model)), rows, layers)

    def step(self) -> None:
        """Perform one step."""
        with all_cores():
            self._optimizer.zero_grad(set_to_none=True)
            self._loss(*self._rows).mean().backward()
            self._optimizer.step()
