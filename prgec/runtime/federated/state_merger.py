"""Rounds of averaged states: devices train alone, send their masters, and get the mean of all."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from prgec.core.contract.engine import TrainableProgram
from prgec.core.formats.adapter import identity, load_snapshot, masters, masters_sha256, save_snapshot
from prgec.core.formats.run_folder import ADAPTER_NAME
from prgec.errors import DataError
from prgec.runtime.federated.average import LocalState, average
from prgec.runtime.federated.local import RoundPlan
from prgec.runtime.federated.messages import NodeAnswer, NodeTask, pack_state, unpack_state
from prgec.runtime.federated.server_adam import ServerAdam
from prgec.runtime.training.schedules import Rates


class StateMerger:
    """Merges rounds of `exact`: devices send their trained state, and get the mean of all.

    The snapshot of the common state is the truth; a process that is killed goes on after the last one.

    Args:
        folder: Folder of the run.
        run: Its identity.
        program: A program of method `exact`, in the state before the first step.
        plan: The numbers of the rounds.
        course: The course of the learning rate over the local steps of one device.
        merge: Row of the table of merges.
        proximal: FedProx's mu, 0 for none.
        optimizer: Takes the server's step; None to take what the devices made as it is.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        program: TrainableProgram,
        *,
        plan: RoundPlan,
        course: Rates,
        merge: str,
        proximal: float = 0.0,
        optimizer: ServerAdam | None = None,
    ) -> None:
        self.plan, self.program = plan, program
        self._run, self._identity, self._course, self._merge = run, identity(program.manifest), course, merge
        self._proximal, self._optimizer = proximal, optimizer
        self._snapshot = folder / ADAPTER_NAME
        self._max_rows = plan.local_steps * program.manifest.batch_size
        self._done = 0
        self._states: dict[str, LocalState] = {}

    def __enter__(self) -> Self:
        if self._snapshot.exists():
            self._done = load_snapshot(self._snapshot, self.program)
        self._hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    @property
    def number(self) -> int:
        """The round that is open, from 1."""
        return self._done + 1

    @property
    def num_contributions(self) -> int:
        """Devices that have contributed to it."""
        return len(self._states)

    def has(self, node: str) -> bool:
        """Whether a device has contributed to it."""
        return node in self._states

    def task(self, node: str, *, is_last: bool = False) -> NodeTask | None:
        """Return the task of a device."""
        del node
        return NodeTask(
            run=self._run,
            program=self._identity,
            number=self.number,
            rounds=self.plan.rounds,
            rates=() if is_last else tuple(self.plan.rates(self._course, self.number)),
            proximal=self._proximal,
            is_last=is_last,
            state=self._packed,
        )

    def take(self, node: str, answer: NodeAnswer) -> bool:
        """Take an answer; return whether the device is up to date, which it always is: it was sent the state.

        Raises:
            DataError: If it started from another state, or its numbers cannot be used.
        """
        if answer.sha256 != self._sha256:
            raise DataError("a device started from another state", where=answer.device)
        if answer.body and answer.number == self.number:
            state = unpack_state(answer.body, self._common)
            found = LocalState(device=node, num_rows=answer.num_rows, state=state)
            # Refused here by the name of the device, not in the merge of all.
            average([found], like=state, max_rows=self._max_rows)
            self._states[node] = found
        return True

    def free_places(self) -> None:
        """Do nothing: a place has no meaning here."""

    def close_round(self) -> None:
        """Merge the open round, and open the next one."""
        states = list(self._states.values())
        state = average(states, like=self._common, max_rows=self._max_rows, merge=self._merge)
        if self._optimizer is not None:
            state = self._optimizer.step(self.number, self._common, state)
        self.program.write_state(state)
        self.program.forget_steps()
        save_snapshot(self._snapshot, self.program, self._done + 1)
        if self._optimizer is not None:
            self._optimizer.forget_before(self.number)
        self._done, self._states = self._done + 1, {}
        self._hold()

    def _hold(self) -> None:
        """Keep the common state as devices get it, which changes with the rounds alone."""
        self._common = masters(self.program.read_state(), self.program.manifest)
        self._packed, self._sha256 = pack_state(self.program), masters_sha256(self.program)
