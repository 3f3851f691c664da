"""Evolution strategies: every perturbed copy of the program writes answers, and the step follows the better ones.

No loss is measured and no gradient computed. A step is q numbers, so that journal, replay and many devices work as they
do for measured losses.

Letters: q queries, B rows a step, r rank, O outputs of a site.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from prgec.core.contract.arrays import Float64Array, State
from prgec.core.contract.calls import Batch
from prgec.core.contract.engine import GeneratingProgram
from prgec.core.contract.sums import ordered_mean
from prgec.runtime.training.prge_trainer import EstimatedStep, Estimation, PrgeTrainer
from prgec.runtime.training.rollouts import Rollouts
from prgec.runtime_ops.host import dual_update

# The objective's name on the command line.
EVOLUTION = "es"


class EvolutionTrainer(PrgeTrainer):
    """Drives a program by the rewards of its perturbed copies.

    The noise is that of a step which measures losses, in antithetic pairs; the loss of a copy is minus the mean reward
    of its answers. Both signs of a query draw their tokens with the same seeds. After Qiu et al., "Evolution Strategies
    at Scale: LLM Fine-Tuning Beyond Reinforcement Learning" (2025), with LoRA-FA in place of all weights, pairs in
    place of single members, and the run's estimator in place of a z-score.

    Args:
        program: The program to train, of a state that is not `dual`.
        estimation: The way from its losses to an update.
        rollouts: The program's answers.
    """

    def __init__(self, program: GeneratingProgram, estimation: Estimation, rollouts: Rollouts) -> None:
        super().__init__(program, estimation)
        self._writer, self._rollouts = program, rollouts

    def step(self, batch: Batch, lr: float) -> EstimatedStep:
        """Let every copy write answers to the prompts of a batch.

        Raises:
            NumericsError: If an answer has no reward, and the run stops for that.
        """
        self.flush()
        m, group, number = self._writer.manifest, self._rollouts.group, self.step_number + 1
        numbers = (batch.indices[: m.batch_size : group] // group).tolist()
        losses: Float64Array = np.empty((m.q, 2))
        master = self._writer.read_state()
        try:
            for copy, state in enumerate(self._copies(master, number)):
                self._writer.write_state(state)
                query, sign = divmod(copy, 2)
                rewards = self._rollouts.collect(numbers, number, copy, draws=query).rewards
                losses[query, sign] = -float(ordered_mean(rewards))
        finally:
            self._writer.write_state(master)
        return self._accept(number, losses, lr)

    def _copies(self, master: State, number: int) -> Iterator[State]:
        """Yield the 2q perturbed states of a step: B + eps z and B - eps z of each query."""
        m = self._writer.manifest
        copies = []
        for site, b in zip(m.sites, master.values(), strict=True):
            copies.append(np.empty((2 * m.q, *b.shape), dtype=np.float32))
            dual_update(b.copy(), self._zeros, 0.0, self._eps, self._seed, number, site.index, copies[-1])
        for copy in range(2 * m.q):
            yield {name: each[copy] for name, each in zip(master, copies, strict=True)}
