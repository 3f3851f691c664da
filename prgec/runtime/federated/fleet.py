"""The loop of a server: asks devices to learn, takes their answers, and merges a round when enough have answered.

It knows no transport: an exchange carries fields to nodes and their answers back (`messages`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from prgec.errors import DataError
from prgec.runtime.federated.merger import Merger
from prgec.runtime.federated.messages import Fields, NodeAnswer, payload_bytes

# Rounds in a row in which devices answered, but too few of them with something of use.
_MAX_FAILURES = 5
# A device that lacks steps gets a second task with them, and a third with the state where that failed.
_MAX_ASKED = 3
_POLL_SECONDS = 1.0


class Exchange(Protocol):
    """A transport of messages to devices; a node is an identity that the transport vouches for."""

    def nodes(self) -> Sequence[str]:
        """Return the nodes that are there now."""

    def ask(self, tasks: Mapping[str, Fields], timeout: float) -> Mapping[str, Fields]:
        """Send a task to each node, and return the answers that came within the time, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When a round is over.

    Attributes:
        min_devices: Fewest devices whose contributions make a round.
        timeout: Seconds in which a device has to answer.
        seed: Which devices a round takes, where there are more than places.
    """

    min_devices: int
    timeout: float
    seed: int


@dataclass(kw_only=True)
class RoundRecord:
    """The course of a round.

    Attributes:
        number: The round, from 1.
        asked: Tasks that were sent.
        devices: Names of those that contributed.
        refused: Reason by the node whose answer was of no use.
        up_bytes: Payload of all answers.
        down_bytes: Payload of all tasks.
        seconds: Time since the round before.
    """

    number: int
    asked: int = 0
    devices: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    up_bytes: int = 0
    down_bytes: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the record as one line of a file has it."""
        return {"round": self.number, **{name: value for name, value in vars(self).items() if name != "number"}}


def run_rounds(merger: Merger, exchange: Exchange, pace: Pace, on_round: Callable[[RoundRecord], None]) -> None:
    """Take the rounds of a run that are left, and give the devices the last state.

    Args:
        merger: The run.
        exchange: The transport.
        pace: When a round is over.
        on_round: Observes each round after it is merged.

    Raises:
        DataError: If devices answer again and again, and nothing they send can be used.
    """
    while merger.number <= merger.plan.rounds:
        start = time.monotonic()
        record = RoundRecord(number=merger.number)
        _gather(merger, exchange, pace, record)
        merger.close_round()
        record.seconds = round(time.monotonic() - start, 3)
        on_round(record)
    last = RoundRecord(number=merger.number)
    _ask(merger, exchange, exchange.nodes(), pace, last, is_last=True)


def _gather(merger: Merger, exchange: Exchange, pace: Pace, record: RoundRecord) -> None:
    """Ask until enough devices have contributed to the open round."""
    failures = attempts = 0
    while merger.num_contributions < pace.min_devices:
        missing = pace.min_devices - merger.num_contributions
        nodes = [node for node in exchange.nodes() if not merger.has(node)]
        if len(nodes) < missing:
            time.sleep(_POLL_SECONDS)
            continue
        record.refused = {}
        _ask(merger, exchange, _chosen(nodes, merger, pace, attempts), pace, record, is_last=False)
        attempts += 1
        # Nothing came of devices that are away, which may come back; refusals will be the same again.
        failures = failures + 1 if record.refused else 0
        if merger.num_contributions < pace.min_devices and failures == _MAX_FAILURES:
            reason = next(iter(record.refused.values()))
            raise DataError(
                f"round {record.number} has {merger.num_contributions} of {pace.min_devices} devices that it needs; "
                f"the others answered: {reason}"
            )
        merger.free_places()


def _chosen(nodes: Sequence[str], merger: Merger, pace: Pace, attempts: int) -> list[str]:
    """Return the nodes that a round asks: all, or as many as have places, by chance and each time others."""
    places = merger.plan.places - merger.num_contributions
    order = np.random.default_rng([pace.seed, merger.number, attempts]).permutation(len(nodes))
    return [sorted(nodes)[place] for place in order[:places]]


def _ask(
    merger: Merger, exchange: Exchange, nodes: Sequence[str], pace: Pace, record: RoundRecord, *, is_last: bool
) -> None:
    """Ask nodes, those again that lacked something, and take their answers."""
    for _ in range(_MAX_ASKED):
        found = {node: merger.task(node, is_last=is_last) for node in nodes}
        tasks = {node: task.fields() for node, task in found.items() if task is not None}
        if not tasks:
            return
        answers = exchange.ask(tasks, pace.timeout)
        record.asked += len(tasks)
        record.down_bytes += sum(payload_bytes(each) for each in tasks.values())
        record.up_bytes += sum(payload_bytes(each) for each in answers.values())
        nodes = [node for node, answer in sorted(answers.items()) if not _take(merger, node, answer, record)]


def _take(merger: Merger, node: str, fields: Fields, record: RoundRecord) -> bool:
    """Take an answer; return whether there is nothing to ask the node again."""
    try:
        answer = NodeAnswer.of_fields(fields)
        if answer.error:
            raise DataError(answer.error, where=answer.device)
        if not merger.take(node, answer):
            return False
    except DataError as error:
        record.refused[node] = str(error)
        return True
    if merger.has(node):
        record.devices.append(answer.device)
    return True
