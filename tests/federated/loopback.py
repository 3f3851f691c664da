"""An exchange in this process between a server and devices over the tiny program, which may lose messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prgec.core.data.encode import Row
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.messages import Fields
from prgec.runtime.federated.node import Node
from prgec.runtime.federated.options import FleetOptions

DEVICES = 3


class Loopback:
    """Carries messages to nodes of this process, and loses some.

    Args:
        nodes: The nodes by identity.
        loses: Whether a message to a node gets lost, and whether its answer does.
    """

    def __init__(self, nodes: Mapping[str, Node], loses: Callable[[str], bool] = lambda node: False) -> None:
        self._nodes, self._loses = nodes, loses
        self.tasks: list[Fields] = []
        self.answers: list[Fields] = []

    def nodes(self) -> Sequence[str]:
        return list(self._nodes)

    def ask(self, tasks: Mapping[str, Fields], timeout: float) -> Mapping[str, Fields]:
        answers = {}
        for node, fields in tasks.items():
            self.tasks.append(fields)
            if self._loses(node):
                continue
            answer = self._nodes[node].answer(fields)
            self.answers.append(answer)
            if not self._loses(node):
                answers[node] = answer
        return answers


def make_node(path: Path, rows: Sequence[Row], folder: Path, number: int) -> Node:
    """One of the devices, with its part of the rows."""
    folder = folder / f"device {number}"
    folder.mkdir(exist_ok=True)
    return Node(name=f"device {number}", folder=folder, program=open_pte(path), rows=rows[number::DEVICES])


def make_nodes(path: Path, rows: Sequence[Row], folder: Path) -> dict[str, Node]:
    """All devices by identity."""
    return {str(100 + number): make_node(path, rows, folder, number) for number in range(DEVICES)}


def fleet_options(path: Path, folder: Path, **changes: Any) -> FleetOptions:
    """Options of a short run."""
    plain = FleetOptions(
        program=path, rounds=6, devices=DEVICES, min_devices=1, local_steps=10, lr=0.15, eps=5e-2, out=folder / "server"
    )
    return replace(plain, **changes)
