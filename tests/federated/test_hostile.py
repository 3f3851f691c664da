"""Messages that a stranger may have written: a server and a device refuse them by name, and go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row
from prgec.core.formats.adapter import masters_sha256
from prgec.errors import DataError
from prgec.runtime.federated.messages import Fields, NodeAnswer, NodeTask, pack_state
from prgec.runtime.federated.open import Fleet
from tests.federated.fleet import read_rows
from tests.federated.loopback import Loopback, fleet_options, make_node, make_nodes


@pytest.fixture
def rows(tiny_pte: Path, train_data: Dataset) -> list[Row]:
    return read_rows(tiny_pte, train_data)


@pytest.fixture
def gradient_rows(gradient_pte: Path, train_data: Dataset) -> list[Row]:
    return read_rows(gradient_pte, train_data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"body": b"\0" * 12}, "an answer has 12 bytes"),
        ({"body": np.full(20, np.nan, dtype="<f4").tobytes()}, "not finite"),
        ({"num_rows": 10**6}, "is of 1000000 rows; expected 1 to"),
        ({"first": 20}, "of another place"),
        ({"sha256": "0" * 64}, "differs from that of other devices"),
        ({"step": 1 << 40}, "a device has 1099511627776 steps"),
        ({"step": -1}, "step = -1"),
        ({"step": "x"}, "no step of type int"),
        ({"step": True}, "no step of type int"),
        ({"device": 7}, "no device of type str"),
        ({"body": None}, "no body of type bytes"),
    ],
)
def test_hostile_answers_are_refused_and_harm_nobody(
    tiny_pte: Path, rows: list[Row], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    nodes = make_nodes(tiny_pte, rows, tmp_path)

    class Hostile(Loopback):
        def ask(self, tasks: Mapping[str, Fields], timeout: float) -> Mapping[str, Fields]:
            answers = super().ask(tasks, timeout)
            return {node: {**each, **(changes if node == "100" else {})} for node, each in answers.items()}

    options = fleet_options(tiny_pte, tmp_path, rounds=1, min_devices=2)
    with Fleet(options) as fleet:
        fleet.run(Hostile(nodes))
        assert masters_sha256(fleet.program) == masters_sha256(nodes["101"].program)
    (line,) = [json.loads(line) for line in (options.out / "rounds.jsonl").read_text().splitlines()[1:]]
    assert sorted(line["devices"]) == ["device 1", "device 2"] and message in line["refused"]["100"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"body": b"\0" * 12}, "a state has 12 bytes"),
        ({"body": "nan"}, "a state has numbers that are not finite"),
        ({"num_rows": 10**6}, "is of 1000000 rows; expected 1 to"),
        ({"num_rows": 0}, "is of 0 rows; expected 1 to"),
        ({"sha256": "0" * 64}, "started from another state"),
        ({"number": 7}, None),
    ],
)
def test_hostile_states_are_refused_and_harm_nobody(
    gradient_pte: Path, gradient_rows: list[Row], tmp_path: Path, changes: dict[str, Any], message: str | None
) -> None:
    nodes = make_nodes(gradient_pte, gradient_rows, tmp_path)

    class Hostile(Loopback):
        def ask(self, tasks: Mapping[str, Fields], timeout: float) -> Mapping[str, Fields]:
            answers = dict(super().ask(tasks, timeout))
            body = answers["100"]["body"]
            nan = np.full(len(body) // 4, np.nan, dtype="<f4").tobytes()
            answers["100"] = {**answers["100"], **changes, **({"body": nan} if changes.get("body") == "nan" else {})}
            return answers

    options = fleet_options(gradient_pte, tmp_path, rounds=1, local_steps=2, min_devices=2)
    with Fleet(options) as fleet:
        fleet.run(Hostile(nodes))
        assert masters_sha256(fleet.program) == masters_sha256(nodes["101"].program)
    (line,) = [json.loads(line) for line in (options.out / "rounds.jsonl").read_text().splitlines()[1:]]
    assert sorted(line["devices"]) == ["device 1", "device 2"]
    # The answer to an earlier round is late, not wrong.
    assert message is None or message in line["refused"]["100"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "speaks version 2"),
        ({"g": b"123"}, "a message has 3 bytes; expected 0"),
        ({"lr": np.array([np.inf]).tobytes(), "g": np.zeros(2, dtype="<f4").tobytes()}, "not finite"),
        ({"rates": [0.1, float("nan")]}, "rates that are not finite"),
        ({"rates": [0.1] * ((1 << 20) + 1)}, "too many of them"),
        ({"state": b"123"}, "a state has 3 bytes; expected"),
        ({"state": "nan"}, "a state has numbers that are not finite"),
        ({"program": "0" * 64}, "another program"),
        ({"eps": 0.0}, "not finite"),
        ({"q": 1 << 40}, "q = 1099511627776"),
        ({"estimator": "none"}, "none"),
    ],
)
def test_hostile_tasks_leave_a_device_as_it_is(
    tiny_pte: Path, rows: list[Row], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with Fleet(fleet_options(tiny_pte, tmp_path)) as fleet:
        task = fleet.merger.task("100")
    assert task is not None
    node = make_node(tiny_pte, rows, tmp_path, 0)
    before = masters_sha256(node.program)
    if changes.get("state") == "nan":
        changes = {"state": np.full(len(pack_state(node.program)) // 4, np.nan, dtype="<f4").tobytes()}
    answer = NodeAnswer.of_fields(node.answer({**task.fields(), **changes}))
    assert message in answer.error and not answer.body
    assert masters_sha256(node.program) == before


def test_messages_come_back_as_they_were(tiny_pte: Path, tmp_path: Path) -> None:
    with Fleet(fleet_options(tiny_pte, tmp_path)) as fleet:
        task = fleet.merger.task("100")
    assert task is not None and task.fields() == NodeTask.of_fields(task.fields()).fields()
    answer = NodeAnswer(device="a", number=3, step=2, sha256="ab", first=4, num_rows=5, body=b"x", error="e")
    assert NodeAnswer.of_fields(answer.fields()) == answer


def test_a_round_that_nobody_can_take_part_in_ends_the_run(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    nodes = make_nodes(tiny_pte, rows, tmp_path)
    for each in nodes.values():
        (each.folder / "device.json").write_text('{"run": "another"}')
    with Fleet(fleet_options(tiny_pte, tmp_path)) as fleet, pytest.raises(DataError, match="belongs to another run"):
        fleet.run(Loopback(nodes))
    assert not list(tmp_path.glob("device */adapter.safetensors"))
