"""The side that learns: measures its own rows, and applies the steps that everyone applies.

Letters: q queries, B examples a step, M local steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prgec.core.contract.arrays import FloatArray, State
from prgec.core.contract.engine import TrainableProgram
from prgec.core.contract.sums import ordered_mean
from prgec.core.data.batches import Batch, step_indices, training_batch
from prgec.core.data.row import Row
from prgec.core.formats.adapter import masters_sha256
from prgec.errors import UsageError
from prgec.runtime.federated.coordinator import Update
from prgec.runtime.federated.merge import Report
from prgec.runtime.training.prge_trainer import PrgeTrainer


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
        m = program.manifest
        if m.has_gradients or m.state == "dual":
            raise UsageError(
                "steps can be shared by programs that measure losses, and whose noise follows from a seed",
                hint="compile with --method prge and --state seeded",
            )
        self.name, self.program, self.step = name, program, step
        self._rows, self._seed, self._eps, self._order = rows, seed, eps, order

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
            self.program.apply(update.g, update.lr, self._seed, update.step + 1)
            self.step = update.step

    def measure(self) -> Report:
        """Measure the next step on B of the device's own rows; the state stays as it is."""
        m, step = self.program.manifest, self.step + 1
        indices = step_indices(len(self._rows), m.batch_size, self._order, step)
        batch = training_batch(self._rows, indices, m)
        loss_N = self.program.forward(
            batch.tokens_NT,
            batch.label_pos_NK,
            batch.targets_NK,
            np.zeros(m.q, dtype=np.float32),
            0.0,
            self._eps,
            self._seed,
            step,
        )
        losses = ordered_mean(loss_N.astype(np.float64).reshape(m.q, 2, m.batch_size))
        return Report(device=self.name, step=step, num_rows=m.batch_size, differences=losses[:, 0] - losses[:, 1])

    def state_sha256(self) -> str:
        """Return the hash of the trained state, which is equal on all devices after the same step."""
        return masters_sha256(self.program)


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """The local steps of one device from a common snapshot.

    Attributes:
        device: Name of the device.
        seed: Key of the noise of these steps, another one on each device.
        weight: Share of it in the merged state; the shares of a round add up to 1.
        lr: Learning rate of each step, f64[M].
        g: Coefficients of each step, f32[M, q].
    """

    device: str
    seed: int
    weight: float
    lr: Sequence[float]
    g: FloatArray


def train_locally(
    name: str, trainer: PrgeTrainer, batches: Sequence[Batch], *, seed: int, weight: float, lr: Sequence[float]
) -> Contribution:
    """Take M steps from the snapshot that a program holds; it is in the state of these steps afterwards.

    Args:
        name: Name of the device.
        trainer: A new trainer of the program, with the seed of this device's steps.
        batches: Rows of each step.
        seed: The trainer's seed.
        weight: Share of the device in the merged state.
        lr: Learning rate of each step.
    """
    steps = [trainer.step(batch, rate) for batch, rate in zip(batches, lr, strict=True)]
    trainer.flush()
    return Contribution(device=name, seed=seed, weight=weight, lr=tuple(lr), g=np.stack([step.g for step in steps]))


def merge_locally(program: TrainableProgram, snapshot: State, contributions: Sequence[Contribution]) -> None:
    """Bring a program to the merged state of a round: the snapshot, then every device's steps in the order of names.

    All devices get the same bits, since all apply the same numbers in the same order.
    """
    program.write_state(snapshot)
    for each in sorted(contributions, key=lambda contribution: contribution.device):
        for number, (g_q, rate) in enumerate(zip(each.g, each.lr, strict=True), start=1):
            program.apply(np.float32(each.weight) * g_q, rate, each.seed, number + 1)
