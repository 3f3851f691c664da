"""The trainer of programs that compute their own gradients: one call a step, and nothing pending."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prgec.core.contract.calls import Batch, Call, StepInputs
from prgec.core.contract.engine import optimizer_names
from prgec.core.contract.names import OPTIMIZER_STATE
from prgec.core.data.batches import evaluation_batches, step_batch
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row, encode_rows
from prgec.core.formats.journal_records import StepRecord
from prgec.errors import InternalError, NumericsError, ProgramError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.training.gradient_trainer import GradientStep, GradientTrainer
from prgec.runtime.training.limits import SKIP, Limits
from tests.tiny_gradient import BETA1, BETA2, DECAY, EPS, GRADIENT_MANIFEST, Evaluated

SEED, LR, STEPS = 5, 0.05, 24
SITE = "head.lora_B"


@pytest.fixture
def program(gradient_pte: Path) -> PteProgram:
    return open_pte(gradient_pte)


@pytest.fixture
def rows(program: PteProgram, train_data: Dataset) -> list[Row]:
    return encode_rows([(e, e.completion or "") for e in train_data.examples], program.tokenizer, program.manifest)


@pytest.fixture
def batches(program: PteProgram, rows: list[Row]) -> list[Batch]:
    m = program.manifest
    return [step_batch(rows, SEED, n, m) for n in range(1, STEPS + 1)]


def test_follows_autograd_and_the_adamw_of_pytorch(program: PteProgram, batches: list[Batch]) -> None:
    trainer = GradientTrainer(program)
    found = [trainer.step(batch, LR) for batch in batches]
    model = Evaluated(GRADIENT_MANIFEST).requires_grad_(False)
    state = model.head.lora_B.requires_grad_()
    optimizer = torch.optim.AdamW([state], LR, betas=(BETA1, BETA2), eps=EPS, weight_decay=DECAY)
    for result, batch in zip(found, batches, strict=True):
        optimizer.zero_grad()
        loss = model(*map(torch.from_numpy, (batch.tokens_NT, batch.label_pos_NK, batch.targets_NK))).mean()
        loss.backward()
        assert result.loss == pytest.approx(loss.item(), rel=1e-4)
        assert result.norm == pytest.approx(float(state.grad.norm()), rel=1e-4)
        optimizer.step()
    expected = state.detach().numpy()
    assert np.abs(program.read_state()[SITE] - expected).max() <= 1e-3 * np.abs(expected).max()
    assert np.mean([each.loss for each in found[-4:]]) < 0.8 * np.mean([each.loss for each in found[:4]])


def test_nothing_is_pending_between_steps(program: PteProgram, batches: list[Batch]) -> None:
    trainer = GradientTrainer(program)
    before = program.state_sha256()
    trainer.step(batches[0], LR)
    after = program.state_sha256()
    trainer.flush()
    assert before != after == program.state_sha256()


def test_evaluating_in_between_changes_nothing(gradient_pte: Path, rows: list[Row], batches: list[Batch]) -> None:
    hashes = set()
    for evaluates in (False, True):
        program = open_pte(gradient_pte)
        trainer = GradientTrainer(program)
        for batch in batches[:6]:
            trainer.step(batch, LR)
            held, optimizer = program.state_sha256(), program.read_optimizer()
            for each in evaluation_batches(rows[:5], program.manifest) if evaluates else ():
                program.evaluate(each)
            assert program.state_sha256() == held
            assert all(np.array_equal(value, optimizer[name]) for name, value in program.read_optimizer().items())
        hashes.add(held)
    assert len(hashes) == 1


def test_evaluates_the_state_that_was_trained(program: PteProgram, batches: list[Batch]) -> None:
    """Both methods share the buffer: what `evaluate` says is what the next step measures."""
    trainer = GradientTrainer(program)
    trainer.step(batches[0], LR)
    batch = batches[1]
    losses = program.evaluate(batch)
    assert trainer.step(batch, LR).loss == pytest.approx(float(losses.mean()), rel=1e-6)


def test_divergence_stops_with_the_state_of_the_step_before(program: PteProgram, batches: list[Batch]) -> None:
    trainer = GradientTrainer(program)
    trainer.step(batches[0], 1e38)
    kept, optimizer = program.state_sha256(), program.read_optimizer()
    with pytest.raises(NumericsError) as error:
        trainer.step(batches[1], LR)
    assert str(error.value) == (
        "the gradient of step 2 is not finite; training stopped, state kept. "
        "Hint: lower --lr, or go on with --not-finite skip"
    )
    assert program.state_sha256() == kept
    assert all(np.array_equal(value, optimizer[name]) for name, value in program.read_optimizer().items())


def test_a_loss_that_is_not_finite_stops_as_a_gradient_does(program: PteProgram) -> None:
    """Weights so far apart that a target's likelihood is 0, while the gradient is finite."""
    m, rng = program.manifest, np.random.default_rng(0)
    # Every slot is used: a mask turns an infinite loss into NaN.
    tokens_NT, targets_NK = (rng.integers(3, m.vocab_size, (m.num_rows, n)) for n in (m.seq_len, m.num_labels))
    batch = Batch(tokens_NT, np.full_like(targets_NK, 10), targets_NK, np.arange(m.num_rows))
    state, target = program.read_state(), targets_NK[0, 0]
    state[SITE][0, target], state[SITE][0, (target + 1) % m.vocab_size] = -3e38, 3e38
    program.write_state(state)
    kept, optimizer = program.state_sha256(), program.read_optimizer()
    losses, factors = program.train(batch, LR)
    assert np.isinf(losses).any() and not np.isnan(losses).any()
    assert factors.tolist() == [0.0, np.inf, 1.0, 1.0]
    with pytest.raises(NumericsError, match="is not finite; training stopped, state kept"):
        GradientTrainer(program).step(batch, LR)
    assert program.state_sha256() == kept
    assert all(np.array_equal(value, optimizer[name]) for name, value in program.read_optimizer().items())


def test_skipping_goes_on(gradient_pte: Path, batches: list[Batch]) -> None:
    """A step whose gradient is not finite is as if it had not been."""
    states = []
    for is_poisoned in (False, True):
        program = open_pte(gradient_pte)
        trainer = GradientTrainer(program, Limits(not_finite=SKIP))
        trainer.step(batches[0], LR)
        if is_poisoned:
            held = program.read_state()
            program.write_state({SITE: np.full_like(held[SITE], np.nan)})
            result = trainer.step(batches[5], LR)
            assert not math.isfinite(result.norm)
            assert result.metrics() == {"step": 2, "loss": None, "lr": LR, "grad_norm": None, "limited": "skipped"}
            program.write_state(held)
        assert trainer.step(batches[1], LR).metrics().keys() == {"step", "loss", "lr", "grad_norm"}
        states.append(program.state_sha256())
    assert states[0] == states[1]


def test_takes_up_what_records_tell(program: PteProgram, batches: list[Batch]) -> None:
    trainer = GradientTrainer(program)
    done = [trainer.step(batch, LR) for batch in batches[:3]]
    records = [_record_of(each) for each in done]
    other = GradientTrainer(program)
    taken_up = other.take_up(records)
    assert [(each.step, each.loss, each.lr) for each in taken_up] == [(each.step, each.loss, each.lr) for each in done]
    np.testing.assert_allclose([each.norm for each in taken_up], [each.norm for each in done], rtol=1e-6)
    assert other.step(batches[3], LR).step == 4


def test_state_of_the_optimiser_goes_out_and_in(program: PteProgram, batches: list[Batch]) -> None:
    trainer = GradientTrainer(program)
    trainer.step(batches[0], LR)
    kept, held = program.read_state(), program.read_optimizer()
    assert tuple(held) == optimizer_names(program.manifest) == (OPTIMIZER_STATE, f"{SITE}_mean", f"{SITE}_square")
    assert all(value.any() for value in held.values())
    trainer.step(batches[1], LR)
    expected = program.state_sha256()
    program.write_state(kept)
    program.write_optimizer(held)
    GradientTrainer(program).step(batches[1], LR)
    assert program.state_sha256() == expected
    with pytest.raises(
        ProgramError, match=f"the state does not fit the program: {OPTIMIZER_STATE} is in only one of them"
    ):
        program.write_optimizer({name: value for name, value in held.items() if name != OPTIMIZER_STATE})


def test_is_never_asked_for_measured_losses(program: PteProgram, batches: list[Batch]) -> None:
    with pytest.raises(InternalError, match="cannot measure losses"):
        program.forward(batches[0], StepInputs.none(1))
    with pytest.raises(InternalError, match="no update to apply"):
        program.apply(StepInputs.none(1))


def _record_of(step: GradientStep) -> StepRecord:
    measured, factors = step.recorded()
    return StepRecord.from_gradient_step(step=step.step, lr=step.lr, measured=measured, factors=factors)


@pytest.mark.parametrize(("norm", "shown"), [(2.0, {"grad_norm": 2.0}), (math.nan, {"limited": "skipped"})])
def test_a_journal_keeps_a_step_as_one_query(norm: float, shown: dict[str, Any]) -> None:
    step = GradientStep(3, 0.5, 0.25, norm)
    record = _record_of(step)
    assert (record.step, record.lr, record.eps, record.losses.tolist()) == (3, 0.25, 0.0, [[0.5, 0.5]])
    np.testing.assert_array_equal(record.g, np.array([norm], np.float32))
    assert shown.items() <= step.metrics().items()


class Scripted:
    """A program that answers every call with the same losses and factors, and keeps the calls."""

    manifest = GRADIENT_MANIFEST

    def __init__(self, losses: list[float], factors: list[float]) -> None:
        self._answer = np.array(losses, np.float32), np.array(factors, np.float32)
        self.calls: list[tuple[Any, ...]] = []

    def train(self, *arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        self.calls.append(arguments)
        return self._answer


BATCH = Batch(np.zeros((4, 5), np.int64), np.zeros((4, 2), np.int64), np.zeros((4, 2), np.int64), np.arange(4))


def test_only_the_last_call_of_a_step_has_its_rate() -> None:
    program = Scripted([1.0, 2.0, 3.0, 4.0], [0.5, 3.0, 1.0, 1.0])
    trainer = GradientTrainer(program)  # type: ignore[arg-type]
    trainer.gather(BATCH)
    trainer.gather(BATCH)
    result = trainer.step(BATCH, LR)
    trainer.step(BATCH, LR)
    assert [(lr, *call) for _, lr, call in program.calls] == [
        (0.0, 0, False),
        (0.0, 1, False),
        (LR, 2, True),
        (LR, 0, True),
    ]
    assert (result.loss, result.norm, trainer.step_number) == (2.5, 3.0, 2)


@pytest.mark.parametrize(
    ("losses", "factors"), [([np.inf, 1, 1, 1], [1, 2, 1, 1]), ([1, 1, 1, 1], [1, np.nan, 1, 1])], ids=["loss", "norm"]
)
def test_either_number_that_is_not_finite_ends_the_run(losses: list[float], factors: list[float]) -> None:
    with pytest.raises(NumericsError, match="step 1 is not finite"):
        GradientTrainer(Scripted(losses, factors)).step(BATCH, LR)  # type: ignore[arg-type]
    GradientTrainer(Scripted(losses, factors), Limits(not_finite=SKIP)).step(BATCH, LR)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [np.nan, np.inf])
def test_the_norm_is_the_second_factor(other: float) -> None:
    program = Scripted([1.0] * 4, [other, 2.0, other, other])
    assert GradientTrainer(program).step(BATCH, LR).norm == 2.0  # type: ignore[arg-type]


def test_an_infinite_norm_is_kept_as_nan() -> None:
    trainer = GradientTrainer(Scripted([1.0] * 4, [0, np.inf, 0, 0]), Limits(not_finite=SKIP))  # type: ignore[arg-type]
    assert math.isnan(trainer.step(BATCH, LR).norm)


def test_a_record_is_the_first_of_its_numbers() -> None:
    record = StepRecord(
        step=3, lr=LR, eps=0.0, losses=np.array([[0.25, 9.0], [8.0, 7.0]]), g=np.array([2.0, 5.0], np.float32)
    )
    (found,) = GradientTrainer(Scripted([], [])).take_up([record])  # type: ignore[arg-type]
    assert (found.step, found.loss, found.lr, found.norm) == (3, 0.25, LR, 2.0)


def test_every_label_of_a_row_has_the_weight_of_the_row() -> None:
    program = Scripted([1.0] * 4, [1, 1, 1, 1])
    trainer = GradientTrainer(program)  # type: ignore[arg-type]
    trainer._train_weighed(BATCH, np.array([1.0, -2.0, 0.0, 0.5]), LR, Call(0, True))
    weights = program.calls[0][0].weights_NK
    assert weights.dtype == np.float32
    assert weights.tolist() == [[1.0, 1.0], [-2.0, -2.0], [0.0, 0.0], [0.5, 0.5]]
