"""How a side network is learnt; imports nothing heavy, so that a server can check it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prgec.core.formats.side_network import NORMS
from prgec.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How a network is learnt; the defaults are the paper's where it says one.

    Attributes:
        rank: r of every adapter.
        epochs: Passes over the rows.
        lr: Learning rate of AdamW.
        weight_decay: Its decoupled weight decay.
        batch_size: B.
        norm: Normalisation of activations, a row of `NORMS`.
        held_out: Share of the rows that is measured by and not learnt from.
        patience: End after as many epochs without a better network; 0 for never.
        seed: Seed of the first weights and of the order of the rows.
    """

    rank: int = 64
    epochs: int = 20
    lr: float = 5e-4
    weight_decay: float = 0.01
    batch_size: int = 8
    norm: str = NORMS[0]
    held_out: float = 0.1
    patience: int = 0
    seed: int = 0

    def check(self) -> None:
        """Refuse impossible values.

        Raises:
            UsageError: Naming the option.
        """
        for flag, count in (("--rank", self.rank), ("--epochs", self.epochs), ("--batch-size", self.batch_size)):
            if not 1 <= count <= 1 << 16:
                raise UsageError(f"{flag} is {count}; expected 1 to {1 << 16}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise UsageError(f"--lr is {self.lr}; expected a finite number above 0")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UsageError(f"--weight-decay is {self.weight_decay}; expected a finite number, 0 or more")
        if not 0 <= self.held_out < 1:
            raise UsageError(f"--held-out is {self.held_out}; expected 0 or more, and less than 1")
        if self.norm not in NORMS:
            raise UsageError(f"--norm is {self.norm!r}; expected {' or '.join(NORMS)}")
        if self.patience < 0:
            raise UsageError(f"--early-stop is {self.patience}; expected 0 or more")
        if not 0 <= self.seed < 1 << 63:
            raise UsageError(f"--seed is {self.seed}; expected 0 or more, below 2^63")
