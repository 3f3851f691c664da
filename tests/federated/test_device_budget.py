"""A device counts how often its rows were used, and no server makes it go beyond its budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prgec.cli.main import main
from prgec.core.contract.engine import TrainableProgram
from prgec.core.data.batches import step_indices
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row
from prgec.core.formats.adapter import masters_sha256
from prgec.errors import DataError, UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.device_budget import BUDGET_NAME, DeviceBudget
from prgec.runtime.federated.messages import Fields
from prgec.runtime.federated.open import Fleet
from prgec.runtime.federated.options import FleetOptions, NodeOptions
from prgec.runtime.federated.simulate import Simulation, split_rows
from prgec.runtime.training.privacy import PrivacyTerms
from tests.federated.fleet import read_rows

DEVICES = 2
TERMS = PrivacyTerms(epsilon=4.0, delta=1e-5)


@pytest.fixture
def rows(tiny_pte: Path, train_data: Dataset) -> list[Row]:
    return list(read_rows(tiny_pte, train_data))


def _budget(folder: Path, rows: Sequence[Row], steps: int = 6, terms: PrivacyTerms = TERMS) -> DeviceBudget:
    return DeviceBudget(folder, terms, rows, steps=steps, batch_size=2)


def _steps(rows: Sequence[Row], first: int, last: int) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [step_indices(len(rows), 2, 0, step) for step in range(first, last + 1)]


def test_rows_are_counted_before_they_are_used(rows: list[Row], tmp_path: Path) -> None:
    rows = rows[:5]
    _budget(tmp_path, rows).charge(_steps(rows, 1, 3))
    found = json.loads((tmp_path / BUDGET_NAME).read_text())
    # Three steps of two of five rows: one of them is used twice.
    assert sorted(found["used"]) == [1, 1, 1, 1, 2]
    assert found["visits"] == 3
    _budget(tmp_path, rows).charge(_steps(rows, 4, 5))
    assert json.loads((tmp_path / BUDGET_NAME).read_text())["used"] == [2] * 5


def test_a_budget_that_is_used_up_counts_nothing_more(rows: list[Row], tmp_path: Path) -> None:
    rows = rows[:4]
    _budget(tmp_path, rows, steps=2).charge(_steps(rows, 1, 2))
    before = (tmp_path / BUDGET_NAME).read_bytes()
    # The server speaks of more steps now; the noise was chosen for the first number.
    with pytest.raises(UsageError, match="the budget of privacy is used up: epsilon 4 lets each row be used 1 times"):
        _budget(tmp_path, rows, steps=200).charge(_steps(rows, 3, 4))
    assert (tmp_path / BUDGET_NAME).read_bytes() == before


@pytest.mark.parametrize("change", [{"epsilon": 8.0}, {"delta": 1e-6}, {"clip": 1.0}])
def test_other_terms_are_refused(rows: list[Row], tmp_path: Path, change: dict[str, float]) -> None:
    _budget(tmp_path, rows).charge(_steps(rows, 1, 1))
    with pytest.raises(UsageError, match="a budget of other rows"):
        _budget(tmp_path, rows, terms=replace(TERMS, **change))


def test_other_rows_are_refused(rows: list[Row], tmp_path: Path) -> None:
    _budget(tmp_path, rows).charge(_steps(rows, 1, 1))
    with pytest.raises(UsageError, match="a budget of other rows"):
        _budget(tmp_path, rows[1:])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"used": 3}'])
def test_a_damaged_budget_is_no_new_one(rows: list[Row], tmp_path: Path, text: str) -> None:
    (tmp_path / BUDGET_NAME).write_text(text)
    with pytest.raises(DataError, match="the budget of privacy is damaged"):
        _budget(tmp_path, rows)


class _AsksTwice(Simulation):
    """A server that wants more of a device than it announced."""

    def __init__(self, folder: Path, program: TrainableProgram, parts: Sequence[Sequence[Row]]) -> None:
        super().__init__(folder, program, parts, terms=TERMS)
        self.second: list[Fields] = []

    def ask(self, tasks: Mapping[str, Fields], timeout: float) -> Mapping[str, Fields]:
        answers = super().ask(tasks, timeout)
        if any(task["rates"] for task in tasks.values()):
            self.second += super().ask(tasks, timeout).values()
        return answers


def _options(path: Path, out: Path, rounds: int = 3) -> FleetOptions:
    return FleetOptions(
        program=path, rounds=rounds, devices=DEVICES, local_steps=4, lr=0.1, min_devices=DEVICES, out=out
    )


def test_devices_learn_within_their_budgets(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    options = _options(tiny_pte, tmp_path / "fleet")
    program = open_pte(tiny_pte)
    parts = split_rows(rows, DEVICES, skew=None, seed=0)
    with Fleet(options) as fleet:
        fleet.run(Simulation(options.out / "devices", program, parts, terms=TERMS))
        assert masters_sha256(fleet.program) == masters_sha256(program) != masters_sha256(open_pte(tiny_pte))
    for number in range(DEVICES):
        found = json.loads((options.out / "devices" / f"device-{number}" / BUDGET_NAME).read_text())
        assert max(found["used"]) <= found["visits"]
        assert sum(found["used"]) == 3 * 4 * program.manifest.batch_size


def test_a_server_gets_no_more_than_it_said(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    options = _options(tiny_pte, tmp_path / "fleet", rounds=1)
    parts = [rows[:4], rows[4:8]]
    exchange = _AsksTwice(options.out / "devices", open_pte(tiny_pte), parts)
    with Fleet(options) as fleet:
        fleet.run(exchange)
    assert len(exchange.second) == DEVICES
    for answer in exchange.second:
        assert "the budget of privacy is used up" in str(answer["error"])
        assert answer["body"] == b""


def test_simulate_takes_a_budget(tiny_pte: Path, train_jsonl: Path, tmp_path: Path) -> None:
    command = ["federate", "simulate", str(tiny_pte), "--data", str(train_jsonl), "--devices", "2", "--rounds", "2"]
    assert main([*command, "--local-steps", "3", "--dp-epsilon", "2", "--out", str(tmp_path / "fleet")]) == 0
    found = json.loads((tmp_path / "fleet" / "devices" / "device-0" / BUDGET_NAME).read_text())
    assert found["epsilon"] == 2.0


def test_gradients_have_no_budget(
    gradient_pte: Path, train_jsonl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["federate", "simulate", str(gradient_pte), "--data", str(train_jsonl), "--devices", "2"]
    assert main([*command, "--dp-epsilon", "2", "--out", str(tmp_path / "fleet")]) != 0
    assert "--dp-epsilon needs a program that measures losses" in capsys.readouterr().err


def test_a_device_names_its_budget(tiny_pte: Path) -> None:
    assert NodeOptions(program=tiny_pte).terms is None
    assert NodeOptions(program=tiny_pte, dp_epsilon=2.0).terms == PrivacyTerms(epsilon=2.0, delta=1e-5)
    with pytest.raises(UsageError, match="--dp-delta is 2"):
        assert NodeOptions(program=tiny_pte, dp_epsilon=2.0, dp_delta=2.0).terms
