"""First-order baselines: backpropagation with SGD or Adam over any space of `spaces.py`."""

from __future__ import annotations

import math

import torch

from prgec.core.contract.calls import Batch
from prgec.errors import NumericsError, UsageError
from prgec.lab.study.baseline import Baseline
from prgec.lab.study.eager import EagerProgram
from prgec.lab.study.spaces import Settings

# A backward pass computes two products for each one of the forward pass.
_FORWARDS_PER_STEP = 3
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


class FirstOrder(Baseline):
    """One run of first-order fine-tuning.

    Args:
        model: Checkpoint folder, alias or hub id.
        seed: Seed of what the space adds.
        space: Row of `SPACES`.
        optimizer: Row of `OPTIMIZERS`, without momentum or weight decay.
        batch_size: Examples a step.
        seq_len: T, the largest number of tokens of a row.
        rank: Rank of low-rank spaces.
        alpha: Their scale.

    Raises:
        UsageError: If there is no such optimiser.
    """

    def __init__(
        self,
        model: str,
        *,
        seed: int,
        space: str = "full",
        optimizer: str = "adam",
        batch_size: int = 16,
        seq_len: int = 64,
        rank: int = 16,
        alpha: float = 32.0,
    ) -> None:
        if optimizer not in OPTIMIZERS:
            raise UsageError(f"unknown optimizer {optimizer!r}", hint=f"known: {', '.join(OPTIMIZERS)}")
        program = EagerProgram(
            model, space=space, seed=seed, batch_size=batch_size, seq_len=seq_len, settings=Settings(rank, alpha)
        )
        super().__init__(program, _FORWARDS_PER_STEP * batch_size)
        self._optimizer: torch.optim.Optimizer = OPTIMIZERS[optimizer](self.program.trained, lr=0.0)

    def _train(self, batch: Batch, lr: float) -> float:
        """Run one forward and one backward pass of B rows, and the optimiser."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.program.losses(batch).mean()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise NumericsError("the loss is not finite", hint="lower lr")
        loss.backward()
        self._optimizer.step()
        return value
