"""The loop of a server and the ends of its devices, over messages that get lost, by an exchange in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row
from prgec.core.formats.adapter import load_adapter, masters_sha256
from prgec.core.formats.journal import read_journal
from prgec.errors import DataError, UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.messages import Fields, NodeAnswer, NodeTask, pack_state, payload_bytes
from prgec.runtime.federated.node import Node
from prgec.runtime.federated.open import Fleet, open_node
from prgec.runtime.federated.options import FleetOptions, NodeOptions
from prgec.runtime.runs.resume import rebuild
from tests.federated.fleet import mean_loss, read_rows

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


def _node(path: Path, rows: Sequence[Row], folder: Path, number: int) -> Node:
    folder = folder / f"device {number}"
    folder.mkdir(exist_ok=True)
    return Node(name=f"device {number}", folder=folder, program=open_pte(path), rows=rows[number::DEVICES])


def _nodes(path: Path, rows: Sequence[Row], folder: Path) -> dict[str, Node]:
    return {str(100 + number): _node(path, rows, folder, number) for number in range(DEVICES)}


def _options(path: Path, folder: Path, **changes: Any) -> FleetOptions:
    plain = FleetOptions(
        program=path, rounds=6, devices=DEVICES, min_devices=1, local_steps=10, lr=0.15, eps=5e-2, out=folder / "server"
    )
    return replace(plain, **changes)


def _lossy(seed: int, share: float) -> Callable[[str], bool]:
    random = np.random.default_rng(seed)
    return lambda node: bool(random.random() < share)


@pytest.fixture
def rows(tiny_pte: Path, train_data: Dataset) -> list[Row]:
    return read_rows(tiny_pte, train_data)


@pytest.fixture
def gradient_rows(gradient_pte: Path, train_data: Dataset) -> list[Row]:
    return read_rows(gradient_pte, train_data)


def test_devices_learn_together_with_messages_lost(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    nodes = _nodes(tiny_pte, rows, tmp_path)
    lossy = Loopback(nodes, _lossy(0, 0.3))
    options = _options(tiny_pte, tmp_path, rounds=12)
    with Fleet(options) as fleet:
        fleet.run(lossy)
        # Those that missed the end get it from a server that is started again.
    with Fleet(options) as fleet:
        fleet.run(Loopback(nodes))
        states = {masters_sha256(fleet.program), *(masters_sha256(each.program) for each in nodes.values())}
        assert len(states) == 1
        assert mean_loss(fleet.program, rows) < 0.9 * mean_loss(open_pte(tiny_pte), rows)
    replayed = open_pte(tiny_pte)
    rebuild(replayed, read_journal(options.out / "journal.bin"), None)
    assert {masters_sha256(replayed)} == states
    for folder in (options.out, *(each.folder for each in nodes.values())):
        again = open_pte(tiny_pte)
        load_adapter(folder, again)
        assert {masters_sha256(again)} == states
    lines = [json.loads(line) for line in (options.out / "rounds.jsonl").read_text().splitlines()[1:]]
    assert [line["round"] for line in lines] == list(range(1, 13))
    assert len(lossy.answers) < len(lossy.tasks)
    assert all(json.loads((each.folder / "device.json").read_bytes())["is_over"] for each in nodes.values())


def test_a_round_costs_few_bytes(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    exchange = Loopback(_nodes(tiny_pte, rows, tmp_path))
    with Fleet(_options(tiny_pte, tmp_path, rounds=2)) as fleet:
        fleet.run(exchange)
        q = fleet.program.manifest.q
    numbers = 4 * q * 10
    trained = [each for each in exchange.answers if each["body"]]
    assert all(numbers < payload_bytes(each) < numbers + 200 for each in trained)


def test_gradients_average_their_states(gradient_pte: Path, gradient_rows: list[Row], tmp_path: Path) -> None:
    nodes = _nodes(gradient_pte, gradient_rows, tmp_path)
    options = _options(gradient_pte, tmp_path, rounds=6, local_steps=10, lr=0.05)
    with Fleet(options) as fleet:
        fleet.run(Loopback(nodes, _lossy(1, 0.2)))
    with Fleet(options) as fleet:
        fleet.run(Loopback(nodes))
        assert len({masters_sha256(fleet.program), *(masters_sha256(each.program) for each in nodes.values())}) == 1
        start = mean_loss(open_pte(gradient_pte), gradient_rows)
        assert mean_loss(fleet.program, gradient_rows) < 0.7 * start


def test_lines_that_a_killed_server_did_not_write_are_written(
    tiny_pte: Path, rows: list[Row], train_jsonl: Path, tmp_path: Path
) -> None:
    nodes = _nodes(tiny_pte, rows, tmp_path)
    options = _options(tiny_pte, tmp_path, rounds=3, local_steps=2, eval_data=train_jsonl)
    with Fleet(options) as fleet:
        fleet.run(Loopback(nodes))
    path = options.out / "rounds.jsonl"
    whole = path.read_text().splitlines()
    path.write_text("\n".join(whole[:3]) + '\n{"round": 3, "dev')
    with Fleet(options) as fleet:
        fleet.run(Loopback(nodes))
    mended = path.read_text().splitlines()
    assert mended[:3] == whole[:3] and len(mended) == 4
    found, expected = json.loads(mended[3]), json.loads(whole[3])
    assert [found[key] for key in ("round", "loss", "accuracy")] == [expected[k] for k in ("round", "loss", "accuracy")]


class _Killed(Exception):
    pass


@pytest.mark.parametrize("method", ["tiny_pte", "gradient_pte"])
def test_a_server_and_devices_that_are_killed_go_on(
    method: str, train_data: Dataset, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(method)
    rows = read_rows(path, train_data)

    def run(folder: Path, kills: set[int]) -> str:
        folder.mkdir()
        asked = 0

        class Mortal(Loopback):
            def ask(self, tasks: Mapping[str, Fields], timeout: float) -> Mapping[str, Fields]:
                nonlocal asked
                asked += 1
                answers = super().ask(tasks, timeout)
                if asked in kills:
                    kills.discard(asked)
                    raise _Killed
                return answers

        options = _options(path, folder, rounds=4, local_steps=5, min_devices=DEVICES, lr=0.05)
        while True:
            try:
                with Fleet(options) as fleet:
                    # Every device is a new process, too.
                    fleet.run(Mortal(_nodes(path, rows, folder)))
                    return masters_sha256(fleet.program)
            except _Killed:
                continue

    assert run(tmp_path / "killed", {1, 3, 4}) == run(tmp_path / "whole", set())


def test_a_late_device_and_one_with_another_state_get_the_common_one(
    tiny_pte: Path, rows: list[Row], tmp_path: Path
) -> None:
    nodes = _nodes(tiny_pte, rows, tmp_path)
    late = nodes.pop("102")
    nodes["101"].program.write_state({k: v + 1 for k, v in nodes["101"].program.read_state().items()})
    options = _options(tiny_pte, tmp_path, rounds=3, local_steps=100)
    with Fleet(options) as fleet:
        fleet.run(Loopback(nodes))
        with pytest.raises(UsageError, match="another run is writing"), Fleet(options):
            pass
        refused = [json.loads(line)["refused"] for line in (options.out / "rounds.jsonl").read_text().splitlines()[1:]]
        assert "differs from that of other devices" in refused[0]["101"] and not any(refused[1:])
    with Fleet(options) as fleet:
        exchange = Loopback({**nodes, "102": late})
        fleet.run(exchange)
        assert len({masters_sha256(each.program) for each in (*nodes.values(), late)}) == 1
    # It was sent the state, which is shorter than all steps.
    assert any(len(fields["state"]) for fields in exchange.tasks)


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
    nodes = _nodes(tiny_pte, rows, tmp_path)

    class Hostile(Loopback):
        def ask(self, tasks: Mapping[str, Fields], timeout: float) -> Mapping[str, Fields]:
            answers = super().ask(tasks, timeout)
            return {node: {**each, **(changes if node == "100" else {})} for node, each in answers.items()}

    options = _options(tiny_pte, tmp_path, rounds=1, min_devices=2)
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
    nodes = _nodes(gradient_pte, gradient_rows, tmp_path)

    class Hostile(Loopback):
        def ask(self, tasks: Mapping[str, Fields], timeout: float) -> Mapping[str, Fields]:
            answers = dict(super().ask(tasks, timeout))
            body = answers["100"]["body"]
            nan = np.full(len(body) // 4, np.nan, dtype="<f4").tobytes()
            answers["100"] = {**answers["100"], **changes, **({"body": nan} if changes.get("body") == "nan" else {})}
            return answers

    options = _options(gradient_pte, tmp_path, rounds=1, local_steps=2, min_devices=2)
    with Fleet(options) as fleet:
        fleet.run(Hostile(nodes))
        assert masters_sha256(fleet.program) == masters_sha256(nodes["101"].program)
    (line,) = [json.loads(line) for line in (options.out / "rounds.jsonl").read_text().splitlines()[1:]]
    assert sorted(line["devices"]) == ["device 1", "device 2"]
    # The answer to an earlier round is late, not wrong.
    assert message is None or message in line["refused"]["100"]


def test_a_device_that_never_answers_gives_its_place_to_another(
    tiny_pte: Path, rows: list[Row], tmp_path: Path
) -> None:
    for dead in ("100", "101", "102"):
        folder = tmp_path / dead
        folder.mkdir()
        exchange = Loopback(_nodes(tiny_pte, rows, folder), lambda node, dead=dead: node == dead)  # type: ignore[misc]
        with Fleet(_options(tiny_pte, folder, rounds=3, local_steps=2, devices=2, min_devices=2)) as fleet:
            fleet.run(exchange)
        lines = [json.loads(line) for line in (folder / "server" / "rounds.jsonl").read_text().splitlines()[1:]]
        alive = [f"device {number}" for number in range(DEVICES) if str(100 + number) != dead]
        assert [sorted(line["devices"]) for line in lines] == [alive] * 3
        # No device takes the steps of a round twice.
        assert len([each for each in exchange.answers if each["body"]]) == 2 * 3


def test_a_round_that_nobody_can_take_part_in_ends_the_run(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    nodes = _nodes(tiny_pte, rows, tmp_path)
    for each in nodes.values():
        (each.folder / "device.json").write_text('{"run": "another"}')
    with Fleet(_options(tiny_pte, tmp_path)) as fleet, pytest.raises(DataError, match="belongs to another run"):
        fleet.run(Loopback(nodes))
    assert not list(tmp_path.glob("device */adapter.safetensors"))


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
    with Fleet(_options(tiny_pte, tmp_path)) as fleet:
        task = fleet.merger.task("100")
    assert task is not None
    node = _node(tiny_pte, rows, tmp_path, 0)
    before = masters_sha256(node.program)
    if changes.get("state") == "nan":
        changes = {"state": np.full(len(pack_state(node.program)) // 4, np.nan, dtype="<f4").tobytes()}
    answer = NodeAnswer.of_fields(node.answer({**task.fields(), **changes}))
    assert message in answer.error and not answer.body
    assert masters_sha256(node.program) == before


def test_messages_come_back_as_they_were(tiny_pte: Path, tmp_path: Path) -> None:
    with Fleet(_options(tiny_pte, tmp_path)) as fleet:
        task = fleet.merger.task("100")
    assert task is not None and task.fields() == NodeTask.of_fields(task.fields()).fields()
    answer = NodeAnswer(device="a", number=3, step=2, sha256="ab", first=4, num_rows=5, body=b"x", error="e")
    assert NodeAnswer.of_fields(answer.fields()) == answer


def test_folders_of_others_are_left_alone(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    options = _options(tiny_pte, tmp_path)
    options.out.mkdir()
    (options.out / "adapter.safetensors").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"adapter\.safetensors of another run"), Fleet(options):
        pass
    (options.out / "adapter.safetensors").unlink()
    with Fleet(options) as fleet:
        task = fleet.merger.task("100")
    with pytest.raises(UsageError, match="a run with other options"), Fleet(replace(options, rounds=7)):
        pass
    node = _node(tiny_pte, rows, tmp_path, 0)
    (node.folder / "adapter.safetensors").write_bytes(b"mine")
    assert task is not None
    assert "has an adapter of its own" in NodeAnswer.of_fields(node.answer(task.fields())).error
    assert (node.folder / "adapter.safetensors").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "--rounds is 0"),
        ({"min_devices": 4}, "--min-devices is 4, and a round has at most 3"),
        ({"lr": -1.0}, "--lr is -1.0"),
        ({"timeout": float("inf")}, "--timeout is inf"),
        ({"merge": "median"}, "--merge median is not for prge"),
    ],
)
def test_options_that_cannot_be(tiny_pte: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message), Fleet(_options(tiny_pte, tmp_path, **changes)):
        pass


def test_a_device_needs_rows(tiny_pte: Path) -> None:
    with pytest.raises(UsageError, match="rows to learn from"):
        open_node(NodeOptions(program=tiny_pte))
