"""The side that merges rounds of local steps: hands out places, takes contributions, and keeps the journal.

Letters: M local steps, q queries.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from prgec.core.formats.journal_records import Header, StepRecord
from prgec.errors import UsageError
from prgec.runtime.federated.ledger import Ledger, Update
from prgec.runtime.federated.local import Contribution, RoundPlan, find_round_merge, scales
from prgec.runtime.training.schedules import Rates


class Rounds(Ledger):
    """Merges the rounds of a run; use as a context manager.

    A process that is killed begins again with the same arguments: it goes on after the last whole round.

    Args:
        path: The journal; made, or continued where it is of the same run.
        header: Identity of the run, with the steps of `plan`; its batch size bounds the rows of a local step.
        plan: The numbers of its steps.
        course: The course of the learning rate over the local steps of one device.
        merge: Row of the table of merges of rounds.

    Raises:
        UsageError: If the journal is of another run, or there is no such merge.
        DataError: If the journal cannot be read.
    """

    def __init__(self, path: Path, header: Header, plan: RoundPlan, course: Rates, *, merge: str = "mean") -> None:
        assert header.steps == plan.steps, "the header is of another plan"
        self.plan, self._course, self._merge = plan, course, find_round_merge(merge)
        super().__init__(path, header, block=plan.block)
        self._places: dict[str, int] = {}
        self._contributions: dict[int, Contribution] = {}

    @property
    def number(self) -> int:
        """The round that is open, from 1."""
        return self.num_steps // self.plan.block + 1

    @property
    def is_over(self) -> bool:
        """Whether all rounds are done."""
        return self.number > self.plan.rounds

    @property
    def num_contributions(self) -> int:
        """Devices that have contributed to the open round."""
        return len(self._contributions)

    @property
    def rates(self) -> list[float]:
        """Learning rates of the local steps of the open round: f64[M]."""
        return self.plan.rates(self._course, self.number)

    def place_of(self, device: str) -> int | None:
        """Give a device a place in the open round, the same one again for one that has it; None where all are taken."""
        free = set(range(self.plan.places)) - set(self._places.values())
        if device not in self._places and free:
            self._places[device] = min(free)
        return self._places.get(device)

    def has(self, device: str) -> bool:
        """Whether a device has contributed to the open round."""
        return self._places.get(device) in self._contributions

    def free_places(self) -> None:
        """Take back the places of devices that have not contributed; what they still send does not count."""
        self._places = {device: place for device, place in self._places.items() if place in self._contributions}

    def submit(self, contribution: Contribution) -> bool:
        """Take local steps; return whether they count. Late, second and uninvited ones do not.

        Raises:
            DataError: If their numbers cannot be used.
        """
        local_steps = self.plan.local_steps
        contribution.check((local_steps, self.header.q), local_steps * self.header.batch_size)
        place = self._places.get(contribution.device)
        if contribution.number != self.number or place is None or place in self._contributions:
            return False
        self._contributions[place] = contribution
        return True

    def close_round(self) -> list[Update]:
        """Merge the open round, record it, and open the next one; return its steps as devices apply them.

        Raises:
            UsageError: If no device has contributed.
        """
        if not self._contributions:
            raise UsageError(f"no device has contributed to round {self.number}")
        rates = self.rates
        factors = scales(self._contributions, self._merge, rates, estimator=self.header.estimator)
        records: list[StepRecord] = []
        for place in range(self.plan.places):
            g_Mq = np.zeros((self.plan.local_steps, self.header.q), dtype=np.float32)
            if place in factors:
                g_Mq = np.float32(factors[place]) * self._contributions[place].g
            first = self.plan.first(self.number, place)
            # Losses stay on the devices.
            unknown = np.full((self.header.q, 2), np.nan)
            for step, (lr, g_q) in enumerate(zip(rates, g_Mq, strict=True), start=first + 1):
                records.append(StepRecord(step=step, lr=lr, eps=self.header.eps, losses=unknown, g=g_q))
        updates = self.append(records)
        self._places, self._contributions = {}, {}
        return updates
