"""Local steps, for transports where a message takes long: devices take M steps alone, then all apply everyone's steps.

All noise has one seed: in a round, the device at place j counts its steps from a number of its own, so that no two
devices draw the same noise, and the steps of all places in order are steps of an ordinary journal. A place whose device
did not report has g = 0.

Letters: S places a round, M local steps, q queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prgec.core.contract.arrays import Float64Array, FloatArray
from prgec.core.data.batches import step_batch
from prgec.errors import DataError, UsageError
from prgec.runtime.federated.device import FederatedDevice
from prgec.runtime.federated.merge import check_numbers
from prgec.runtime.training.estimators import OF_ONE_LENGTH, find_estimator
from prgec.runtime.training.prge_trainer import Estimation, PrgeTrainer
from prgec.runtime.training.privacy import Privacy
from prgec.runtime.training.schedules import Rates, learning_rate


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """The numbers of the steps of a run of rounds.

    Attributes:
        rounds: Rounds of the run.
        places: Most devices of a round, S.
        local_steps: Steps each device takes in a round, M.
    """

    rounds: int
    places: int
    local_steps: int

    def check(self) -> None:
        """Refuse impossible numbers.

        Raises:
            UsageError: Naming the first one.
        """
        for name, value in vars(self).items():
            if value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {value}; expected 1 or more")

    @property
    def block(self) -> int:
        """Steps of a round, those of all places."""
        return self.places * self.local_steps

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.rounds * self.block

    def first(self, number: int, place: int) -> int:
        """Return how many steps come before the first one of a place in a round, counted from 1."""
        return (number - 1) * self.block + place * self.local_steps

    def rates(self, course: Rates, number: int) -> list[float]:
        """Return the learning rates of the local steps of a round: f64[M]; `course` is that of one device."""
        before = (number - 1) * self.local_steps
        return [learning_rate(course, before + step) for step in range(1, self.local_steps + 1)]


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """The local steps of one device in a round.

    Attributes:
        device: Name of the device.
        number: The round, from 1.
        num_rows: Rows that its steps measured.
        g: Coefficients of each step, f32[M, q].
    """

    device: str
    number: int
    num_rows: int
    g: FloatArray

    def check(self, shape: tuple[int, int], max_rows: int) -> None:
        """Refuse numbers that cannot be used.

        Raises:
            DataError: Naming the device.
        """
        if self.g.shape != shape:
            raise DataError(
                f"a contribution has {list(self.g.shape)} numbers; expected {list(shape)}", where=self.device
            )
        check_numbers(self.g, self.num_rows, max_rows, what="a contribution", device=self.device)


def local_steps(number: int, rates: Sequence[float]) -> range:
    """Return the numbers of a device's own steps in a round, as the order of its rows counts them."""
    before = (number - 1) * len(rates)
    return range(before + 1, before + len(rates) + 1)


def train_locally(
    device: FederatedDevice,
    *,
    number: int,
    first: int,
    rates: Sequence[float],
    estimator: str,
    privacy: Privacy | None = None,
) -> Contribution:
    """Take the local steps of a round; the program is then in the state that it was in before.

    Args:
        device: The device, which has all steps of the rounds before.
        number: The round, from 1.
        first: Steps before its own ones.
        rates: Learning rate of each step.
        estimator: Row of the table of estimators; it remembers the steps of this round alone.
        privacy: How single rows are hidden; None to send losses as they are.
    """
    program, m = device.program, device.program.manifest
    snapshot = program.read_state()
    estimation = Estimation(estimator=find_estimator(estimator), eps=device.eps, seed=device.seed, privacy=privacy)
    trainer = PrgeTrainer(program, estimation, step=first)
    try:
        g = []
        for local, lr in zip(local_steps(number, rates), rates, strict=True):
            g.append(trainer.step(step_batch(device.rows, device.order, local, m), lr).g)
    finally:
        # Steps taken back by negative ones would not give the same bits.
        program.write_state(snapshot)
    return Contribution(device=device.name, number=number, num_rows=len(rates) * m.batch_size, g=np.stack(g))


def scales(
    contributions: Mapping[int, Contribution], merge: str, rates: Sequence[float], *, estimator: str
) -> dict[int, float]:
    """Return the factor of each contribution by its place: its share, and less where it is too long.

    With `norm` a step has one length whatever the number of its queries. Devices are further queries, in directions of
    their own. The mean of D devices is sqrt(D) times shorter than the steps of one, and is brought to their length.

    Args:
        contributions: By place.
        merge: Row of `ROUND_MERGES`.
        rates: Learning rate of each local step.
        estimator: Row of the table of estimators, by which the devices took their steps.
    """
    total = sum(each.num_rows for each in contributions.values())
    # By rows alone a device that claims many of them counts most; where lengths are bounded, all count the same.
    shares = {
        place: 1 / len(contributions) if merge == "clipped" else each.num_rows / total
        for place, each in contributions.items()
    }
    if estimator in OF_ONE_LENGTH:
        length = math.sqrt(sum(share * share for share in shares.values()))
        shares = {place: share / length for place, share in shares.items()}
    if merge == "mean":
        return shares
    lengths = {place: _length(each.g, rates) for place, each in contributions.items()}
    bound = float(np.median(list(lengths.values())))
    return {
        place: share * min(1.0, bound / lengths[place] if lengths[place] else 1.0) for place, share in shares.items()
    }


# `clipped` shortens the steps of a device to the median length of the round.
ROUND_MERGES = ("mean", "clipped")


def find_round_merge(name: str) -> str:
    """Return the name of a row of the table.

    Raises:
        UsageError: If there is none.
    """
    if name not in ROUND_MERGES:
        raise UsageError(f"there is no merge of rounds {name!r}", hint=f"take one of {', '.join(ROUND_MERGES)}")
    return name


def _length(g: FloatArray, rates: Sequence[float]) -> float:
    """Return the length of a sum of steps, up to a factor that all devices have: their noise is orthogonal, nearly."""
    moved: Float64Array = g.astype(np.float64) * np.asarray(rates)[:, None]
    return math.sqrt(float((moved * moved).sum()))
