"""The side that learns: measures its own rows, and applies the steps that everyone applies.

Letters: q queries, B examples a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prgec.core.contract.calls import StepInputs
from prgec.core.contract.engine import TrainableProgram
from prgec.core.contract.sums import ordered_mean
from prgec.core.data.batches import step_batch
from prgec.core.data.row import Row
from prgec.core.formats.adapter import load_snapshot, masters_sha256, save_snapshot
from prgec.errors import UsageError
from prgec.runtime.federated.ledger import CONFIRM_EVERY, Update
from prgec.runtime.federated.merge import Report


class FederatedDevice:
    """A device with rows of its own.

    Args:
        name: Name of the device.
        program: A program of method `prge`, in the state before the first step or after `step`.
        rows: Its rows.
        seed: Key of the noise, the same on all devices.
        eps: Perturbation scale, > 0, the same on all devices.
        order: Seed of the order of its rows.
        step: Steps that the program's state includes.

    Raises:
        UsageError: If the program does not train by measured losses.
    """

    def __init__(
        self,
        name: str,
        program: TrainableProgram,
        rows: Sequence[Row],
        *,
        seed: int,
        eps: float,
        order: int = 0,
        step: int = 0,
    ) -> None:
        check_shares_steps(program)
        self.name, self.program, self.step = name, program, step
        self.rows, self.seed, self.eps, self.order = rows, seed, eps, order

    def catch_up(self, updates: Sequence[Update]) -> None:
        """Apply steps in order; those that the state includes already are passed over.

        Raises:
            UsageError: If a step is missing.
        """
        for update in updates:
            if update.step <= self.step:
                continue
            if update.step != self.step + 1:
                raise UsageError(f"step {self.step + 1} is missing: the next one at hand is {update.step}")
            self.program.apply(StepInputs(g_q=update.g, lr=update.lr, seed=self.seed, step=update.step + 1))
            self.step = update.step

    def measure(self) -> Report:
        """Measure the next step on B of the device's own rows; the state stays as it is."""
        m, step = self.program.manifest, self.step + 1
        batch = step_batch(self.rows, self.order, step, m)
        no_update = np.zeros(m.q, dtype=np.float32)
        inputs = StepInputs(g_q=no_update, lr=0.0, eps=self.eps, seed=self.seed, step=step)
        loss_N = self.program.forward(batch, inputs)
        losses = ordered_mean(loss_N.astype(np.float64).reshape(m.q, 2, m.batch_size))
        return Report(device=self.name, step=step, num_rows=m.batch_size, differences=losses[:, 0] - losses[:, 1])

    @property
    def is_due(self) -> bool:
        """Whether the hash of the present state is to be reported."""
        return self.step % CONFIRM_EVERY == 0

    def state_sha256(self) -> str:
        """Return the hash of the trained state, which is equal on all devices after the same step."""
        return masters_sha256(self.program)

    def save(self, path: Path) -> None:
        """Write the state and its step, atomically: this device returns with it, and another one joins with it."""
        save_snapshot(path, self.program, self.step)

    def restore(self, path: Path) -> None:
        """Go on from a saved state.

        Raises:
            ProgramError: If the file is missing, damaged or of another program; nothing has changed then.
        """
        self.step = load_snapshot(path, self.program)


def check_shares_steps(program: TrainableProgram) -> None:
    """Check that a program's steps can be applied elsewhere.

    Raises:
        UsageError: If they cannot.
    """
    m = program.manifest
    if m.has_gradients or m.state == "dual":
        raise UsageError(
            "steps can be shared by programs that measure losses, and whose noise follows from a seed",
            hint="compile with --method prge and --state seeded",
        )
