"""The trainer feeds g back one step late, flushes exactly once, and stops with the state intact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from prgec.core.contract.calls import Batch, StepInputs
from prgec.core.data.batches import step_batch
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row, encode_rows
from prgec.errors import NumericsError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.training.estimators import Plain
from prgec.runtime.training.prge_trainer import EstimatedStep, Estimation, PrgeTrainer
from prgec.runtime_ops import noise

# g is a difference of losses over 2 EPS, so a narrow EPS turns the last bits of a loss, which differ between
# processors, into what the next losses differ by: at 1e-2 as much as 1e-5 of them after eight steps, at this 1e-6.
SEED, EPS, LR = 5, 5e-2, 0.5


@pytest.fixture
def program(tiny_pte: Path) -> PteProgram:
    return open_pte(tiny_pte)


@pytest.fixture
def batches(program: PteProgram, train_data: Dataset) -> list[Batch]:
    rows: list[Row] = encode_rows(
        [(e, e.completion or "") for e in train_data.examples], program.tokenizer, program.manifest
    )
    return [step_batch(rows, SEED, step, program.manifest) for step in range(1, 9)]


def _textbook(model: nn.Module, batches: list[Batch]) -> tuple[list[float], np.ndarray]:
    """MeZO with q queries, one forward per query and sign, updating the master after each step."""
    zeros, q = torch.zeros(2), 2
    losses = []
    for step, batch in enumerate(batches, start=1):
        arrays = [torch.from_numpy(a) for a in (batch.tokens_NT, batch.label_pos_NK, batch.targets_NK)]
        z = noise.randn(torch.tensor(SEED), torch.tensor(step), 0, q, model.head.lora_B.shape)
        update, step_losses = torch.zeros_like(model.head.lora_B), []
        for i in range(q):
            pair = []
            for sign in (1.0, -1.0):
                master = model.head.lora_B.clone()
                model.head.lora_B += sign * EPS * z[i]
                rows = model(*arrays, zeros, torch.tensor(0.0), torch.tensor(0.0), torch.tensor(0), torch.tensor(0))
                model.head.lora_B.copy_(master)
                pair.append(rows[:2].double().mean())  # the first B rows hold the B examples
            step_losses += pair
            update += ((pair[0] - pair[1]) / (2 * EPS)).float() * z[i]
        model.head.lora_B -= LR / q * update
        losses.append(float(torch.stack(step_losses).mean()))
    return losses, model.head.lora_B.numpy()


def test_follows_textbook_mezo(program: PteProgram, make_eager: Callable[[], nn.Module], batches: list[Batch]) -> None:
    trainer = PrgeTrainer(program, Estimation(estimator=Plain(), eps=EPS, seed=SEED))
    losses = [trainer.step(batch, LR).loss for batch in batches]
    trainer.flush()
    with torch.no_grad():
        expected_losses, expected_state = _textbook(make_eager(), batches)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    state = program.read_state()["head.lora_B"]
    assert np.abs(state - expected_state).max() <= 1e-3 * np.abs(expected_state).max()


def test_update_is_one_step_late_until_flushed(program: PteProgram, batches: list[Batch]) -> None:
    trainer = PrgeTrainer(program, Estimation(estimator=Plain(), eps=EPS, seed=SEED))
    assert trainer.is_flushed
    trainer.step(batches[0], LR)
    assert not program.read_state()["head.lora_B"].any()
    assert not trainer.is_flushed
    trainer.flush()
    assert program.read_state()["head.lora_B"].any()
    assert trainer.is_flushed


def test_flushing_in_between_changes_nothing(tiny_pte: Path, batches: list[Batch]) -> None:
    hashes, losses = set(), set()
    for flush_every in (1, 3, 100):
        program = open_pte(tiny_pte)
        trainer = PrgeTrainer(program, Estimation(estimator=Plain(), eps=EPS, seed=SEED))
        for number, batch in enumerate(batches, start=1):
            result = trainer.step(batch, LR)
            if number % flush_every == 0:
                trainer.flush()
                trainer.flush()
        trainer.flush()
        hashes.add(program.state_sha256())
        losses.add(result.loss)
    assert len(hashes) == len(losses) == 1


def test_lr_belongs_to_the_step_that_measured_g(tiny_pte: Path, batches: list[Batch]) -> None:
    states = []
    for rates in ([LR, 0.0], [0.0, LR]):
        program = open_pte(tiny_pte)
        trainer = PrgeTrainer(program, Estimation(estimator=Plain(), eps=EPS, seed=SEED))
        trainer.step(batches[0], rates[0])
        trainer.step(batches[1], rates[1])
        states.append(bool(program.read_state()["head.lora_B"].any()))
    assert states == [True, False]


def test_reports_the_mean_over_all_rows(program: PteProgram, batches: list[Batch]) -> None:
    result = PrgeTrainer(program, Estimation(estimator=Plain(), eps=EPS, seed=SEED)).step(batches[0], LR)
    assert result.step == 1
    assert result.losses.shape == (2, 2)
    assert result.loss == pytest.approx(result.losses.mean())
    np.testing.assert_allclose(result.g, (result.losses[:, 0] - result.losses[:, 1]) / (2 * EPS), rtol=1e-6)


def test_loss_that_is_not_finite_stops_with_the_state_kept(program: PteProgram, batches: list[Batch]) -> None:
    trainer = PrgeTrainer(program, Estimation(estimator=Plain(), eps=EPS, seed=SEED))
    trainer.step(batches[0], LR)
    trainer.step(batches[1], LR)
    trainer.flush()
    kept = program.state_sha256()
    huge = PrgeTrainer(program, Estimation(estimator=Plain(), eps=1e38, seed=SEED), step=2)
    with pytest.raises(NumericsError, match="the loss of step 3 is not finite; training stopped, state kept"):
        huge.step(batches[2], LR)
    huge.flush()
    assert program.state_sha256() == kept


def test_coefficient_that_is_not_finite_stops(program: PteProgram, batches: list[Batch]) -> None:
    with pytest.raises(NumericsError, match="projected gradient of step 1"), np.errstate(all="ignore"):
        PrgeTrainer(program, Estimation(estimator=_Overflow(), eps=EPS, seed=SEED)).step(batches[0], LR)
    assert not program.read_state()["head.lora_B"].any()


def test_failed_step_leaves_nothing_to_flush(tiny_pte: Path, batches: list[Batch]) -> None:
    failed, reference = open_pte(tiny_pte), open_pte(tiny_pte)
    trainer = PrgeTrainer(failed, Estimation(estimator=_NanAfterOne(), eps=EPS, seed=SEED))
    trainer.step(batches[0], LR)
    with pytest.raises(NumericsError, match="step 2"):
        trainer.step(batches[1], LR)
    trainer.flush()
    one_step = PrgeTrainer(reference, Estimation(estimator=Plain(), eps=EPS, seed=SEED))
    one_step.step(batches[0], LR)
    one_step.flush()
    assert failed.state_sha256() == reference.state_sha256()


class _NanAfterOne(Plain):
    calls = 0

    def coefficients(self, loss_plus_q: np.ndarray, loss_minus_q: np.ndarray, eps: float) -> np.ndarray:
        _NanAfterOne.calls += 1
        g_q = super().coefficients(loss_plus_q, loss_minus_q, eps)
        return g_q if _NanAfterOne.calls == 1 else np.full_like(g_q, np.nan)


class _Overflow(Plain):
    def coefficients(self, loss_plus_q: np.ndarray, loss_minus_q: np.ndarray, eps: float) -> np.ndarray:
        return loss_plus_q * 1e300


def test_a_step_is_flat_where_no_query_tells_its_signs_apart() -> None:
    g = np.zeros(2, np.float32)
    flat, one = np.array([[0.5, 0.5], [0.25, 0.25]]), np.array([[0.5, 0.5], [0.25, 0.375]])
    steps = [EstimatedStep(1, 0.5, 0.1, flat, g, EPS), EstimatedStep(1, 0.5, 0.1, one, g, EPS, "clipped")]
    assert [step.is_flat for step in steps] == [True, False]
    assert "limited" not in steps[0].metrics() and steps[1].metrics()["limited"] == "clipped"


def test_nothing_is_pending_before_a_step_and_after_a_flush(program: PteProgram, batches: list[Batch]) -> None:
    passed: list[tuple[list[float], float]] = []

    class Watched:
        """The program, and the update that every call of it was given."""

        def forward(self, batch: Batch, step: StepInputs) -> np.ndarray:
            passed.append((step.g_q.tolist(), step.lr))
            return program.forward(batch, step)

        def __getattr__(self, name: str) -> Any:
            return getattr(program, name)

    trainer = PrgeTrainer(Watched(), Estimation(estimator=Plain(), eps=EPS, seed=SEED))  # type: ignore[arg-type]
    first = trainer.step(batches[0], LR)
    trainer.step(batches[1], LR)
    trainer.flush()
    trainer.step(batches[2], LR)
    assert passed == [([0.0, 0.0], 0.0), (first.g.tolist(), LR), ([0.0, 0.0], 0.0)]
    failing = PrgeTrainer(Watched(), Estimation(estimator=_Overflow(), eps=EPS, seed=SEED))  # type: ignore[arg-type]
    for batch in batches[:2]:
        with pytest.raises(NumericsError), np.errstate(all="ignore"):
            failing.step(batch, LR)
    assert passed[3:] == [([0.0, 0.0], 0.0)] * 2


def test_the_limits_effect_is_reported() -> None:
    losses, g = np.array([[0.5, 0.25], [0.25, 0.5]]), np.array([1.0, 0.0], np.float32)
    shown = EstimatedStep(1, 0.5, 0.1, losses, g, EPS, "clipped").metrics()
    assert shown == {"step": 1, "loss": 0.5, "lr": 0.1, "g": [1.0, 0.0], "limited": "clipped"}


def test_privacy_hides_the_losses_of_the_rows_of_a_step() -> None:
    q, batch_size = 2, 3
    loss_N = np.arange(2 * q * batch_size, dtype=np.float32)
    hidden: list[tuple[np.ndarray, np.ndarray, float]] = []

    class Program:
        manifest = SimpleNamespace(q=q, batch_size=batch_size)

        def forward(self, batch: Batch, step: StepInputs) -> np.ndarray:
            return loss_N

    class Hiding:
        def hide(self, losses: np.ndarray, indices: np.ndarray, eps: float) -> np.ndarray:
            hidden.append((losses, indices, eps))
            return losses.sum(axis=-1)

    # Every query and sign repeats the three rows.
    batch = SimpleNamespace(indices=np.tile([7, 1, 4], 2 * q))
    way = Estimation(estimator=Plain(), eps=EPS, seed=SEED, privacy=Hiding())  # type: ignore[arg-type]
    result = PrgeTrainer(Program(), way).step(batch, LR)  # type: ignore[arg-type]
    ((losses, indices, eps),) = hidden
    assert losses.tolist() == loss_N.reshape(q, 2, batch_size).tolist()
    assert (indices.tolist(), eps) == ([7, 1, 4], EPS)
    assert result.losses.tolist() == [[3.0, 12.0], [21.0, 30.0]]
