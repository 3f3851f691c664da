"""Rounds of steps of shared noise: devices send coefficients, and apply those of all.

The server has its own copy of the program, whose state is the common one: it is evaluated, written as an adapter, and
sent to devices that come late.

Letters: M local steps, q queries, n steps.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from prgec.core.contract.engine import TrainableProgram
from prgec.core.formats.adapter import identity
from prgec.core.formats.journal_records import Header
from prgec.core.formats.run_folder import ADAPTER_NAME, JOURNAL_NAME
from prgec.errors import DataError
from prgec.runtime.federated.device import FederatedDevice
from prgec.runtime.federated.local import Contribution, RoundPlan
from prgec.runtime.federated.messages import NodeAnswer, NodeTask, SharedSteps, pack_state
from prgec.runtime.federated.rounds import Rounds
from prgec.runtime.training.schedules import Rates

_BYTES_OF_A_RATE = 8


class StepMerger:
    """Merges rounds of `prge`: devices send the coefficients of their steps, and apply those of all.

    Args:
        folder: Folder of the run.
        run: Its identity.
        program: A program of method `prge`, in the state before the first step.
        header: Identity of the journal.
        plan: The numbers of the rounds.
        course: The course of the learning rate over the local steps of one device.
        merge: Row of the table of merges of rounds.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        program: TrainableProgram,
        *,
        header: Header,
        plan: RoundPlan,
        course: Rates,
        merge: str,
    ) -> None:
        self.plan, self.program = plan, program
        self._run, self._identity, self._header = run, identity(program.manifest), header
        self._adapter = folder / ADAPTER_NAME
        self._rounds = Rounds(folder / JOURNAL_NAME, header, plan, course, merge=merge)
        self._own = FederatedDevice("the server", program, (), seed=header.seed, eps=header.eps)
        # Steps that each device has, as far as is known, and the devices that get the state itself.
        self._steps: dict[str, int] = {}
        self._reset: set[str] = set()
        # The common state, as devices get it; it changes with the rounds alone.
        self._state = b""

    def __enter__(self) -> Self:
        if self._adapter.exists():
            self._own.restore(self._adapter)
        self._catch_up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rounds.__exit__(kind, error, trace)

    @property
    def number(self) -> int:
        """The round that is open, from 1."""
        return self._rounds.number

    @property
    def num_contributions(self) -> int:
        """Devices that have contributed to it."""
        return self._rounds.num_contributions

    def has(self, node: str) -> bool:
        """Whether a device has contributed to it."""
        return self._rounds.has(node)

    def task(self, node: str, *, is_last: bool = False) -> NodeTask | None:
        """Return the task of a device; None where the round has no place left."""
        rounds, q = self._rounds, self._header.q
        place = 0 if is_last else rounds.place_of(node)
        if place is None:
            return None
        # A device that nobody knows is taken for one that has all steps: it says how many it has.
        after = self._steps.get(node, rounds.num_steps)
        updates = rounds.updates(after)
        sends_state = node in self._reset or len(updates) * (4 * q + _BYTES_OF_A_RATE) > len(self._state)
        if sends_state:
            after, updates = rounds.num_steps, []
        g = [each.g for each in updates]
        return NodeTask(
            run=self._run,
            program=self._identity,
            number=rounds.number,
            rounds=self.plan.rounds,
            rates=() if is_last else tuple(rounds.rates),
            is_last=is_last,
            state=self._state if sends_state else b"",
            steps=SharedSteps(
                seed=self._header.seed,
                eps=self._header.eps,
                estimator=self._header.estimator,
                first=self.plan.first(rounds.number, place),
                after=after,
                lr=np.array([each.lr for each in updates], dtype=np.float64),
                g=np.stack(g) if g else np.zeros((0, q), dtype=np.float32),
            ),
        )

    def take(self, node: str, answer: NodeAnswer) -> bool:
        """Take an answer; return whether the device is up to date. One that is not gets another task.

        Raises:
            DataError: If its state differs from that of others, or its numbers cannot be used.
        """
        rounds = self._rounds
        rounds.updates(answer.step)  # Refuses more steps than there are.
        self._steps[node] = answer.step
        if answer.step < rounds.num_steps:
            return False
        try:
            rounds.confirm(answer.step, answer.sha256, answer.device)
        except DataError:
            self._reset.add(node)
            raise
        self._reset.discard(node)
        if answer.body:
            self._submit(node, answer)
        return True

    def free_places(self) -> None:
        """Give the places of devices that did not answer to others."""
        self._rounds.free_places()

    def close_round(self) -> None:
        """Merge the open round, and open the next one."""
        self._rounds.close_round()
        self._catch_up()
        self._own.save(self._adapter)

    def _submit(self, node: str, answer: NodeAnswer) -> None:
        place = self._rounds.place_of(node)
        if place is None or answer.first != self.plan.first(self._rounds.number, place):
            raise DataError("an answer is of another place", where=answer.device)
        g = answer.coefficients(self.plan.local_steps, self._header.q)
        found = Contribution(device=node, number=answer.number, num_rows=answer.num_rows, g=g)
        self._rounds.submit(found)

    def _catch_up(self) -> None:
        self._own.catch_up(self._rounds.updates(self._own.step))
        self._rounds.confirm(self._own.step, self._own.state_sha256(), self._own.name)
        self._state = pack_state(self.program)
