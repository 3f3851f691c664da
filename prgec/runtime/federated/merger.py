"""The two ways to make one adapter of what devices learnt, as the loop of a server sees them."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from prgec.core.contract.engine import TrainableProgram
from prgec.runtime.federated.local import RoundPlan
from prgec.runtime.federated.messages import NodeAnswer, NodeTask


class Merger(Protocol):
    """A run of rounds as a server's loop sees it; use as a context manager.

    Attributes:
        plan: The numbers of its rounds.
        program: The server's program, in the common state.
    """

    plan: RoundPlan
    program: TrainableProgram

    def __enter__(self) -> Self:
        """Begin the run, or go on after its last whole round."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files."""

    @property
    def number(self) -> int:
        """The round that is open, from 1."""

    @property
    def num_contributions(self) -> int:
        """Devices that have contributed to it."""

    def has(self, node: str) -> bool:
        """Whether a device has contributed to it."""

    def task(self, node: str, *, is_last: bool = False) -> NodeTask | None:
        """Return the task of a device; None where the round has no place left."""

    def take(self, node: str, answer: NodeAnswer) -> bool:
        """Take an answer; return whether the device is up to date. One that is not gets another task.

        Raises:
            DataError: If it cannot be used.
        """

    def free_places(self) -> None:
        """Give the places of devices that did not answer to others."""

    def close_round(self) -> None:
        """Merge the open round, and open the next one."""
