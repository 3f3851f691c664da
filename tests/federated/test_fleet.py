"""The loop of a server and the ends of its devices, over messages that get lost, by an exchange in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row
from prgec.core.formats.adapter import load_adapter, masters_sha256
from prgec.core.formats.journal import read_journal
from prgec.errors import UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.messages import Fields, NodeAnswer, payload_bytes
from prgec.runtime.federated.open import Fleet, open_node
from prgec.runtime.federated.options import NodeOptions
from prgec.runtime.runs.resume import rebuild
from tests.federated.fleet import mean_loss, read_rows
from tests.federated.loopback import DEVICES, Loopback, fleet_options, make_node, make_nodes


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
    nodes = make_nodes(tiny_pte, rows, tmp_path)
    lossy = Loopback(nodes, _lossy(0, 0.3))
    options = fleet_options(tiny_pte, tmp_path, rounds=12)
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
    exchange = Loopback(make_nodes(tiny_pte, rows, tmp_path))
    with Fleet(fleet_options(tiny_pte, tmp_path, rounds=2)) as fleet:
        fleet.run(exchange)
        q = fleet.program.manifest.q
    numbers = 4 * q * 10
    trained = [each for each in exchange.answers if each["body"]]
    assert all(numbers < payload_bytes(each) < numbers + 200 for each in trained)


def test_gradients_average_their_states(gradient_pte: Path, gradient_rows: list[Row], tmp_path: Path) -> None:
    nodes = make_nodes(gradient_pte, gradient_rows, tmp_path)
    options = fleet_options(gradient_pte, tmp_path, rounds=6, local_steps=10, lr=0.05)
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
    nodes = make_nodes(tiny_pte, rows, tmp_path)
    options = fleet_options(tiny_pte, tmp_path, rounds=3, local_steps=2, eval_data=train_jsonl)
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


@pytest.mark.parametrize(
    ("method", "optimizer"), [("tiny_pte", "none"), ("gradient_pte", "none"), ("gradient_pte", "adam")]
)
def test_a_server_and_devices_that_are_killed_go_on(
    method: str, optimizer: str, train_data: Dataset, tmp_path: Path, request: pytest.FixtureRequest
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

        options = fleet_options(path, folder, rounds=4, local_steps=5, min_devices=DEVICES, lr=0.05)
        options = replace(options, server_optimizer=optimizer)
        while True:
            try:
                with Fleet(options) as fleet:
                    # Every device is a new process, too.
                    fleet.run(Mortal(make_nodes(path, rows, folder)))
                    return masters_sha256(fleet.program)
            except _Killed:
                continue

    assert run(tmp_path / "killed", {1, 3, 4}) == run(tmp_path / "whole", set())


def test_a_late_device_and_one_with_another_state_get_the_common_one(
    tiny_pte: Path, rows: list[Row], tmp_path: Path
) -> None:
    nodes = make_nodes(tiny_pte, rows, tmp_path)
    late = nodes.pop("102")
    nodes["101"].program.write_state({k: v + 1 for k, v in nodes["101"].program.read_state().items()})
    options = fleet_options(tiny_pte, tmp_path, rounds=3, local_steps=100)
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


def test_a_device_that_never_answers_gives_its_place_to_another(
    tiny_pte: Path, rows: list[Row], tmp_path: Path
) -> None:
    for dead in ("100", "101", "102"):
        folder = tmp_path / dead
        folder.mkdir()
        exchange = Loopback(make_nodes(tiny_pte, rows, folder), lambda node, dead=dead: node == dead)  # type: ignore[misc]
        with Fleet(fleet_options(tiny_pte, folder, rounds=3, local_steps=2, devices=2, min_devices=2)) as fleet:
            fleet.run(exchange)
        lines = [json.loads(line) for line in (folder / "server" / "rounds.jsonl").read_text().splitlines()[1:]]
        alive = [f"device {number}" for number in range(DEVICES) if str(100 + number) != dead]
        assert [sorted(line["devices"]) for line in lines] == [alive] * 3
        # No device takes the steps of a round twice.
        assert len([each for each in exchange.answers if each["body"]]) == 2 * 3


def test_folders_of_others_are_left_alone(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    options = fleet_options(tiny_pte, tmp_path)
    options.out.mkdir()
    (options.out / "adapter.safetensors").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"adapter\.safetensors of another run"), Fleet(options):
        pass
    (options.out / "adapter.safetensors").unlink()
    with Fleet(options) as fleet:
        task = fleet.merger.task("100")
    with pytest.raises(UsageError, match="a run with other options"), Fleet(replace(options, rounds=7)):
        pass
    node = make_node(tiny_pte, rows, tmp_path, 0)
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
    with pytest.raises(UsageError, match=message), Fleet(fleet_options(tiny_pte, tmp_path, **changes)):
        pass


def test_a_device_needs_rows(tiny_pte: Path) -> None:
    with pytest.raises(UsageError, match="rows to learn from"):
        open_node(NodeOptions(program=tiny_pte))
