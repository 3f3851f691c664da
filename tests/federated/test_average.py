"""Programs that compute gradients: devices send their masters, and all go on from the mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prgec.core.data.batches import step_indices, training_batch
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row
from prgec.core.formats.adapter import masters_sha256
from prgec.errors import DataError, UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.average import LocalState, average, train_state
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
