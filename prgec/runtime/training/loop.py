"""The training loop: which rows and which learning rate every step gets, and the time steps take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from prgec.core.contract.arrays import IntArray
from prgec.core.contract.calls import Batch
from prgec.core.contract.manifest import Manifest
from prgec.core.data.batches import step_indices, training_batch
from prgec.core.data.encode import Row
from prgec.runtime.training.schedules import Rates, learning_rate
from prgec.runtime.training.step import StepResult, Steps


@dataclass(kw_only=True)
class TrainingLoop:
    """Steps after the last one the trainer took, up to the last of the course; iterate to take them.

    The caller does its own work between two steps, and ends early by leaving the loop.

    Attributes:
        trainer: Takes the steps.
        rows: Training rows.
        manifest: Shapes of the program.
        seed: Key of the order of examples.
        rates: Number of steps, and their learning rates.
        accumulate: Calls of a step.
        gather: Runs all calls of a step but the last. None unless the program accumulates gradients.
        group: Rows that belong together and follow each other: steps choose among groups.
        repeats: Steps on the same rows, one after the other.
        wall_seconds: Time the steps took so far.
        cpu_seconds: CPU time of the process they took, over all threads.
    """

    trainer: Steps
    rows: Sequence[Row]
    manifest: Manifest
    seed: int
    rates: Rates
    accumulate: int = 1
    gather: Callable[[Batch], None] | None = None
    group: int = 1
    repeats: int = 1
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __iter__(self) -> Iterator[StepResult]:
        for step in range(self.trainer.step_number + 1, self.rates.steps + 1):
            yield self.take(step, learning_rate(self.rates, step))

    def take(self, step: int, lr: float) -> StepResult:
        """Take one step, which the trainer counts so, with the learning rate that some course has for it."""
        wall, cpu = time.monotonic(), time.process_time()
        *earlier, last = self._calls(step)
        for indices in earlier:
            assert self.gather is not None, "a step of several calls, and nobody to gather them"
            self.gather(training_batch(self.rows, indices, self.manifest))
        result = self.trainer.step(training_batch(self.rows, last, self.manifest), lr)
        self.wall_seconds += time.monotonic() - wall
        self.cpu_seconds += time.process_time() - cpu
        return result

    def _calls(self, step: int) -> list[IntArray]:
        """Rows of each call of a step, in the order of one call that held them all."""
        size, group, number = self.manifest.batch_size, self.group, (step - 1) // self.repeats + 1
        chosen = step_indices(len(self.rows) // group, size * self.accumulate // group, self.seed, number)
        indices = (chosen[:, None] * group + np.arange(group)).reshape(-1)
        return [indices[start : start + size] for start in range(0, len(indices), size)]
