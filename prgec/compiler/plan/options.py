"""Options of a plan. Imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prgec.backends import find_backend
from prgec.compiler.plan.shape import ModelShape
from prgec.core.contract.names import MAX_ROLLOUTS
from prgec.errors import UsageError

# The one backend whose programs were measured.
CALIBRATED = "xnnpack"
METHODS = ("prge", "exact", "shortcut", "side")
# Methods in the order of how much they learn from equal rows (docs/reports/gradients.md); side needs a second machine.
BY_LEARNING = ("exact", "shortcut", "prge", "side")


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The budget, and what is fixed.

    Attributes:
        memory: Bytes the device can give.
        seconds: Time for all steps; None for any.
        steps: Steps of the run.
        seq_len: T.
        num_labels: K.
        backend: Row of the backend table.
        driver: cpp, or python with its interpreter.
        watts: Power of the device while it trains; None to say nothing of energy.
        num_examples: Training rows, for the size of kept prefixes; None where no data are given.
        context: C, positions of the cache of a program that answers; 0 for none.
        rollouts: R, texts that it writes at once, with a cache each; 0 for one at a time.
    """

    memory: int
    seconds: float | None = None
    steps: int = 1000
    seq_len: int = 128
    num_labels: int = 4
    backend: str = CALIBRATED
    driver: str = "cpp"
    watts: float | None = None
    num_examples: int | None = None
    context: int = 0
    rollouts: int = 0

    def check(self, shape: ModelShape) -> None:
        """Check everything against the model.

        Raises:
            UsageError: On an impossible value.
        """
        if self.steps < 1:
            raise UsageError(f"--steps is {self.steps}; expected at least 1")
        if self.watts is not None and not (math.isfinite(self.watts) and self.watts > 0):
            raise UsageError(f"--watts is {self.watts}; expected a positive number")
        if self.seq_len < 4 or self.num_labels < 1 or self.num_labels >= self.seq_len:
            raise UsageError(
                f"--seq-len is {self.seq_len} and --label-tokens {self.num_labels}; expected at least 4 tokens, and "
                "fewer labels than that"
            )
        if 0 < shape.max_positions < self.seq_len:
            raise UsageError(f"--seq-len is {self.seq_len}; {shape.name} supports {shape.max_positions} positions")
        if self.context < 0 or 0 < shape.max_positions < self.context:
            most = (
                f"{shape.name} supports {shape.max_positions} positions" if self.context > 0 else "expected 0 or more"
            )
            raise UsageError(f"--context is {self.context}; {most}")
        if self.rollouts and not (self.context and 2 <= self.rollouts <= MAX_ROLLOUTS):
            raise UsageError(
                f"--rollouts is {self.rollouts}; expected 2 to {MAX_ROLLOUTS}, and a --context", hint="add --context C"
            )
        if self.backend != CALIBRATED:
            find_backend(self.backend)
            raise UsageError(
                f"--backend {self.backend} is not calibrated: its programs have not been measured",
                hint=f"plan for {CALIBRATED}",
            )
