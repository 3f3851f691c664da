"""Many devices on one machine: what a federation would learn from these rows, without a network.

All devices have the same program and begin a round from the same state, so that one program plays them in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from prgec.core.contract.engine import TrainableProgram
from prgec.core.data.row import Row
from prgec.errors import UsageError
from prgec.runtime.federated.messages import Fields
from prgec.runtime.federated.node import Node
from prgec.runtime.training.privacy import PrivacyTerms


class Simulation:
    """Devices of this process, as a server's exchange.

    Args:
        folder: Folder of their states.
        program: The program that plays them; another one than the server's.
        parts: Rows of each device.
        terms: Budget of privacy of each device; None for devices that hide nothing.
        change: Changes the answer of a device by its number, as one that wants to harm would; None for honest ones.
    """

    def __init__(
        self,
        folder: Path,
        program: TrainableProgram,
        parts: Sequence[Sequence[Row]],
        *,
        terms: PrivacyTerms | None = None,
        change: Callable[[int, Fields], Fields] | None = None,
    ) -> None:
        self._program, self._start, self.change = program, program.read_state(), change
        self._nodes: dict[str, Node] = {}
        for number, rows in enumerate(parts):
            place = folder / f"device-{number}"
            place.mkdir(parents=True, exist_ok=True)
            self._nodes[str(number)] = Node(
                name=f"device-{number}", folder=place, program=program, rows=rows, terms=terms
            )

    def nodes(self) -> Sequence[str]:
        """Return the numbers of the devices."""
        return list(self._nodes)

    def ask(self, tasks: Mapping[str, Fields], timeout: float) -> Mapping[str, Fields]:
        """Have each device do its task, one after the other."""
        del timeout
        answers: dict[str, Fields] = {}
        for node, fields in tasks.items():
            # A device that took part before has its own state in its folder.
            self._program.write_state(self._start)
            answer: Fields = self._nodes[node].answer(fields)
            answers[node] = self.change(int(node), answer) if self.change else answer
        return answers


def split_rows(rows: Sequence[Row], devices: int, *, skew: float | None, seed: int) -> list[list[Row]]:
    """Deal rows out to devices.

    Args:
        rows: The rows.
        devices: Number of devices.
        skew: Concentration of a Dirichlet distribution by which each answer is shared among devices, 0.1 for very
            unequal ones; None to deal out by chance (Hsu et al., "Measuring the Effects of Non-Identical Data
            Distribution for Federated Visual Classification", section 3).
        seed: Seed of the choice.

    Raises:
        UsageError: If there are fewer rows than devices, or `skew` is not above 0.
    """
    if len(rows) < devices:
        raise UsageError(f"there are {len(rows)} rows for {devices} devices")
    random = np.random.default_rng(seed)
    parts: list[list[Row]] = [[] for _ in range(devices)]
    for shared in [rows] if skew is None else _by_answer(rows):
        order = random.permutation(len(shared))
        weights = np.full(devices, 1 / devices) if skew is None else random.dirichlet(np.full(devices, skew))
        ends = np.round(np.cumsum(weights) * len(shared)).astype(int)
        for part, start, end in zip(parts, [0, *ends[:-1]], ends, strict=True):
            part += [shared[place] for place in order[start:end]]
    # A device without rows could not take part: the richest ones give one each.
    for part in parts:
        if not part:
            part.append(max(parts, key=len).pop())
    return parts


def _by_answer(rows: Sequence[Row]) -> list[list[Row]]:
    found: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(row.targets, []).append(row)
    return [found[answer] for answer in sorted(found)]
