"""Programs that compute gradients: devices send their masters, and all go on from the mean."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prgec.core.contract.arrays import State
from prgec.core.contract.engine import TrainableProgram
from prgec.core.data.batches import step_indices, training_batch
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row
from prgec.core.formats.adapter import masters, masters_sha256
from prgec.errors import DataError, UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.average import LocalState, average, train_state
from prgec.runtime.federated.open import Fleet
from prgec.runtime.federated.options import FleetOptions
from prgec.runtime.training.gradient_trainer import GradientTrainer
from tests.federated.fleet import mean_loss, read_rows

RATES = [0.05] * 5
MAX_ROWS = 100


@pytest.fixture
def rows(gradient_pte: Path, train_data: Dataset) -> list[Row]:
    return read_rows(gradient_pte, train_data)


def test_devices_learn_together_and_end_with_the_same_bits(gradient_pte: Path, rows: list[Row]) -> None:
    programs = [open_pte(gradient_pte) for _ in range(3)]
    like = programs[0].read_state()
    for number in range(1, 5):
        sent = [
            train_state(f"device {n}", each, rows[n::3], rates=RATES, number=number, order=n)
            for n, each in enumerate(programs)
        ]
        for each, order in zip(programs, (sent, sent[::-1], sent[1:] + sent[:1]), strict=True):
            each.write_state(average(order, like=like, max_rows=MAX_ROWS))
        assert len({masters_sha256(each) for each in programs}) == 1
    assert mean_loss(programs[0], rows) < 0.7 * mean_loss(open_pte(gradient_pte), rows)


def test_one_device_is_an_ordinary_run_bit_for_bit(gradient_pte: Path, rows: list[Row]) -> None:
    """Rounds after the first one differ from it by the optimiser alone, which starts afresh."""
    program, other = open_pte(gradient_pte), open_pte(gradient_pte)
    trainer = GradientTrainer(other)
    for step, lr in enumerate(RATES, start=1):
        indices = step_indices(len(rows), other.manifest.batch_size, 7, step)
        trainer.step(training_batch(rows, indices, other.manifest), lr)
    sent = train_state("only", program, rows, rates=RATES, number=1, order=7)
    program.write_state(average([sent], like=program.read_state(), max_rows=MAX_ROWS))
    assert masters_sha256(program) == masters_sha256(other)


def _state(device: str, value: float, num_rows: int = 10) -> LocalState:
    return LocalState(device=device, num_rows=num_rows, state={"b": np.full((2, 3), value, dtype=np.float32)})


LIKE = {"b": np.zeros((2, 3), dtype=np.float32)}


def test_rows_weigh_and_the_median_does_not_follow_a_poisoner() -> None:
    states = [_state("a", 1.0, 10), _state("b", 2.0, 30), _state("c", -1000.0, 60)]
    assert average(states[:2], like=LIKE, max_rows=MAX_ROWS)["b"] == pytest.approx(1.75)
    assert average(states, like=LIKE, max_rows=MAX_ROWS)["b"] == pytest.approx(-599.3)
    assert average(states, like=LIKE, max_rows=MAX_ROWS, merge="median")["b"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (_state("phone 7", np.nan), "not finite"),
        (_state("phone 7", 1.0, 0), "is of 0 rows"),
        (_state("phone 7", 1.0, 101), "is of 101 rows; expected 1 to 100"),
        (replace(_state("phone 7", 1.0), state={}), "other sites"),
        (replace(_state("phone 7", 1.0), state={"b": np.zeros(6, dtype=np.float32)}), "other sites"),
    ],
)
def test_states_that_cannot_be_used_are_refused_by_name(bad: LocalState, message: str) -> None:
    with pytest.raises(DataError, match=f"{message}.*phone 7"):
        average([_state("a", 1.0), bad], like=LIKE, max_rows=MAX_ROWS)
    with pytest.raises(UsageError, match="no device has sent a state"):
        average([], like=LIKE, max_rows=MAX_ROWS)


def _stepped(program: TrainableProgram, rows: list[Row], proximal: float) -> State:
    return train_state("only", program, rows, rates=RATES, number=1, order=7, proximal=proximal).state


def test_proximal_steps_are_those_of_the_operator(gradient_pte: Path, rows: list[Row]) -> None:
    """One step at a time, the pull in numbers of its own."""
    program, mu = open_pte(gradient_pte), 3.0
    common = {name: array.copy() for name, array in masters(program.read_state(), program.manifest).items()}
    trainer = GradientTrainer(program)
    for step, lr in enumerate(RATES, start=1):
        indices = step_indices(len(rows), program.manifest.batch_size, 7, step)
        trainer.step(training_batch(rows, indices, program.manifest), lr)
        state = masters(program.read_state(), program.manifest)
        # The minimum of 1/2 |B - moved|^2 + lr mu / 2 |B - common|^2, by its derivative.
        program.write_state(
            {name: moved - lr * mu / (1 + lr * mu) * (moved - common[name]) for name, moved in state.items()}
        )
    found = _stepped(open_pte(gradient_pte), rows, mu)
    for name, expected in masters(program.read_state(), program.manifest).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-7)


def test_a_larger_mu_holds_nearer(gradient_pte: Path, rows: list[Row]) -> None:
    common = masters(open_pte(gradient_pte).read_state(), open_pte(gradient_pte).manifest)
    moved = []
    for mu in (0.0, 1.0, 10.0, 1e6):
        state = _stepped(open_pte(gradient_pte), rows, mu)
        moved.append(max(float(np.abs(state[name] - common[name]).max()) for name in common))
    assert moved[0] > moved[1] > moved[2] > 1e3 * moved[3]


@pytest.mark.parametrize("mu", [-1.0, math.inf, math.nan])
def test_impossible_mu_is_refused(gradient_pte: Path, mu: float) -> None:
    with pytest.raises(UsageError, match="--proximal is"):
        FleetOptions(program=gradient_pte, proximal=mu).check()


def test_measured_losses_have_no_proximal_term(tiny_pte: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--proximal is not for prge"):
        Fleet(FleetOptions(program=tiny_pte, proximal=1.0, out=tmp_path / "fleet")).__enter__()
