"""Devices that one machine plays: the rows they get, and that they are devices like others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from prgec.cli.main import main
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row
from prgec.core.formats.adapter import masters_sha256
from prgec.errors import UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.messages import Fields
from prgec.runtime.federated.node import Node
from prgec.runtime.federated.open import Fleet
from prgec.runtime.federated.options import FleetOptions
from prgec.runtime.federated.simulate import Simulation, split_rows
from tests.federated.fleet import read_rows

DEVICES = 4


@pytest.fixture
def rows(tiny_pte: Path, train_data: Dataset) -> list[Row]:
    return list(read_rows(tiny_pte, train_data))


def _options(path: Path, out: Path) -> FleetOptions:
    return FleetOptions(program=path, rounds=3, devices=DEVICES, local_steps=4, lr=0.1, min_devices=DEVICES, out=out)


@pytest.mark.parametrize("skew", [None, 0.1, 10.0])
def test_every_row_goes_to_one_device(rows: list[Row], skew: float | None) -> None:
    parts = split_rows(rows, DEVICES, skew=skew, seed=3)
    assert sorted(id(row) for part in parts for row in part) == sorted(map(id, rows))
    assert len(parts) == DEVICES and all(parts)
    assert parts == split_rows(rows, DEVICES, skew=skew, seed=3) != split_rows(rows, DEVICES, skew=skew, seed=4)


def _unevenness(parts: list[list[Row]]) -> float:
    """How far the shares of the answers are from those of all rows."""
    answers = sorted({row.targets for part in parts for row in part})
    counts = np.array([[sum(row.targets == answer for row in part) for answer in answers] for part in parts])
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(np.abs(shares - counts.sum(axis=0) / counts.sum()).mean())


def test_a_small_alpha_deals_answers_out_unequally(rows: list[Row]) -> None:
    many = rows * 10
    unequal, nearly, equal = (
        np.mean([_unevenness(split_rows(many, DEVICES, skew=skew, seed=seed)) for seed in range(5)])
        for skew in (0.1, 100.0, None)
    )
    assert unequal > 4 * nearly and unequal > 4 * equal


def test_fewer_rows_than_devices_are_refused(rows: list[Row]) -> None:
    with pytest.raises(UsageError, match="there are 3 rows for 4 devices"):
        split_rows(rows[:3], 4, skew=None, seed=0)


@pytest.mark.parametrize("method", ["tiny_pte", "gradient_pte"])
def test_one_program_plays_what_programs_of_their_own_do(
    method: str, train_data: Dataset, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(method)
    parts = split_rows(read_rows(path, train_data), DEVICES, skew=None, seed=0)

    class Separate(Simulation):
        """Opens the program anew for every device."""

        def __init__(self) -> None:
            super().__init__(tmp_path / "separate", open_pte(path), parts)
            self._nodes = {
                key: Node(name=node.name, folder=node.folder, program=open_pte(path), rows=node.rows)
                for key, node in self._nodes.items()
            }

    states = []
    for exchange in (Simulation(tmp_path / "shared", open_pte(path), parts), Separate()):
        with Fleet(_options(path, tmp_path / str(len(states)))) as fleet:
            fleet.run(exchange)
            states.append(masters_sha256(fleet.program))
    assert states[0] == states[1] != masters_sha256(open_pte(path))


def test_devices_that_harm_can_be_played(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    def silent(number: int, answer: Fields) -> Fields:
        return {**answer, "body": b""} if number == 2 else answer

    exchange = Simulation(
        tmp_path / "d", open_pte(tiny_pte), split_rows(rows, DEVICES, skew=None, seed=0), change=silent
    )
    options = FleetOptions(
        program=tiny_pte, rounds=2, devices=DEVICES, local_steps=2, min_devices=3, out=tmp_path / "o"
    )
    with Fleet(options) as fleet:
        fleet.run(exchange)
    lines = [json.loads(line) for line in (tmp_path / "o" / "rounds.jsonl").read_text().splitlines()[1:]]
    assert [sorted(line["devices"]) for line in lines] == [["device-0", "device-1", "device-3"]] * 2


def test_the_commands(tiny_pte: Path, train_jsonl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    flags = ["--rounds", "2", "--devices", "3", "--local-steps", "2", "--out", str(out), "--lr", "0.05"]
    simulate = ["federate", "simulate", str(tiny_pte), "--data", str(train_jsonl), *flags]
    assert main([*simulate, "--eval-data", str(train_jsonl), "--skew", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("round 0, 0 of 0 devices") and "round 2, 3 of 3 devices, 0.4 kB up" in shown
    assert main(["federate", "status", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == shown.splitlines()[:-1]
    assert main(["federate", "status", str(out), "--json"]) == 0
    assert [line["round"] for line in json.loads(capsys.readouterr().out)["rounds"]] == [0, 1, 2]
    for arguments, message in (
        (["federate", "status", str(tmp_path)], "not the folder of a server"),
        ([*simulate, "--skew", "0"], "--skew is 0.0"),
        ([*simulate, "--seed", "3"], "the folder has a run with other options"),
        (["federate", "serve", str(tiny_pte), "--port", "0"], "--port is 0"),
        (["federate", "serve", str(tiny_pte)], "Flower is not installed"),
        (["federate", "join", str(tiny_pte)], "a device needs rows to learn from"),
        (["federate", "app", str(out), str(tiny_pte)], "the folder is not empty"),
    ):
        assert main(arguments) != 0
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error


def test_the_app_is_a_project_that_names_its_options(tiny_pte: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my app"
    assert main(["federate", "app", str(folder), str(tiny_pte), "--rounds", "7"]) == 0
    project = (folder / "pyproject.toml").read_text(encoding="utf-8")
    assert f'options = "{folder / "federate.toml"}"' in project
    assert "rounds = 7" in (folder / "federate.toml").read_text(encoding="utf-8")
