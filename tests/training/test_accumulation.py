"""Steps of several calls: as one call that holds all their rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from prgec.core.contract.calls import Batch
from prgec.core.contract.engine import optimizer_names
from prgec.core.data.batches import step_indices, training_batch
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row, encode_rows
from prgec.errors import NumericsError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.training.gradient_trainer import GradientTrainer
from prgec.runtime.training.limits import SKIP, Limits
from prgec.runtime.training.loop import TrainingLoop
from prgec.runtime.training.schedules import Rates
from tests.tiny_gradient import GATHERING_MANIFEST

SEED, LR, STEPS = 5, 0.05, 12
SITE = "head.lora_B"


@pytest.fixture
def gathering(gathering_pte: Path) -> PteProgram:
    return open_pte(gathering_pte)


@pytest.fixture
def rows(gathering: PteProgram, train_data: Dataset) -> list[Row]:
    examples = [(each, each.completion or "") for each in train_data.examples]
    return encode_rows(examples, gathering.tokenizer, gathering.manifest)


@pytest.fixture
def batches(rows: list[Row]) -> Iterator[Batch]:
    """Those of one call after the other, without end."""
    size = GATHERING_MANIFEST.batch_size
    return (training_batch(rows, step_indices(len(rows), size, SEED, n), GATHERING_MANIFEST) for n in range(1, 10**6))


def _loop(trainer: GradientTrainer, rows: list[Row], program: PteProgram, accumulate: int) -> TrainingLoop:
    rates = Rates(STEPS, LR, "linear")
    return TrainingLoop(
        trainer=trainer,
        rows=rows,
        manifest=program.manifest,
        seed=SEED,
        rates=rates,
        accumulate=accumulate,
        gather=trainer.gather,
    )


def test_two_calls_of_half_the_rows_are_one_call(gathering: PteProgram, gradient_pte: Path, rows: list[Row]) -> None:
    """The same rows in the same order; losses, norms and weights differ by rounding alone."""
    whole = open_pte(gradient_pte)
    assert whole.manifest.batch_size == 2 * gathering.manifest.batch_size
    once = list(_loop(GradientTrainer(whole), rows, whole, 1))
    twice = list(_loop(GradientTrainer(gathering), rows, gathering, 2))
    for first, second in zip(once, twice, strict=True):
        assert first.step == second.step and first.lr == second.lr
        assert second.loss == pytest.approx(first.loss, rel=1e-6)
        assert second.metrics()["grad_norm"] == pytest.approx(first.metrics()["grad_norm"], rel=1e-5)
    first, second = (program.read_state()[SITE] for program in (whole, gathering))
    assert np.abs(first - second).max() < 1e-4 * np.abs(first).max()
    for name, value in whole.read_optimizer().items():
        np.testing.assert_allclose(gathering.read_optimizer()[name], value, rtol=1e-3, atol=1e-9, err_msg=name)


def test_what_an_unfinished_step_left_behind_is_no_part_of_the_next(
    gathering: PteProgram, gathering_pte: Path, batches: Iterator[Batch]
) -> None:
    batch, fresh = next(batches), open_pte(gathering_pte)
    GradientTrainer(gathering).gather(next(batches))
    for program in (gathering, fresh):
        GradientTrainer(program).step(batch, LR)
    assert gathering.state_sha256() == fresh.state_sha256()


def test_only_the_last_call_of_a_step_changes_anything(gathering: PteProgram, batches: Iterator[Batch]) -> None:
    trainer = GradientTrainer(gathering)
    trainer.step(next(batches), LR)
    state, optimizer = gathering.state_sha256(), gathering.read_optimizer()
    for _ in range(3):
        trainer.gather(next(batches))
        assert gathering.state_sha256() == state and trainer.step_number == 1
        assert all(np.array_equal(value, optimizer[name]) for name, value in gathering.read_optimizer().items())
    assert trainer.step(next(batches), LR).step == 2
    assert gathering.state_sha256() != state


def test_sums_are_no_part_of_what_is_kept(gathering: PteProgram, gradient_pte: Path) -> None:
    """Nothing of them is left between steps, so that snapshots are as large as before."""
    names = optimizer_names(gathering.manifest)
    assert names == optimizer_names(open_pte(gradient_pte).manifest) == tuple(gathering.read_optimizer())


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_call_that_is_not_finite_spoils_its_step_alone(
    gathering: PteProgram, batches: Iterator[Batch], position: int
) -> None:
    trainer = GradientTrainer(gathering, Limits(not_finite=SKIP))
    trainer.step(next(batches), LR)
    held, optimizer = gathering.read_state(), gathering.read_optimizer()
    for call in range(3):
        spoiled = np.full_like(held[SITE], np.nan) if call == position else held[SITE]
        gathering.write_state({SITE: spoiled})
        if call < 2:
            trainer.gather(next(batches))
    result = trainer.step(next(batches), LR)
    assert not math.isfinite(result.norm) and not math.isfinite(result.loss)
    gathering.write_state(held)
    assert all(np.array_equal(value, optimizer[name]) for name, value in gathering.read_optimizer().items())
    trainer.gather(next(batches))
    assert math.isfinite(trainer.step(next(batches), LR).norm)


def test_stops_behind_a_step_that_is_not_finite(gathering: PteProgram, batches: Iterator[Batch]) -> None:
    trainer = GradientTrainer(gathering)
    gathering.write_state({SITE: np.full_like(gathering.read_state()[SITE], np.nan)})
    trainer.gather(next(batches))
    with pytest.raises(NumericsError, match="^the gradient of step 1 is not finite; training stopped, state kept"):
        trainer.step(next(batches), LR)
