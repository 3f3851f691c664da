"""The gradient of B by each objective, as a step of a compiled graph takes it, beside autograd through the whole loss.

The oracle shares nothing with the trainer: losses are the papers' (tests/training/test_objectives.py), log-likelihoods
those of the Hugging Face model with branches as forward hooks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from prgec.compiler.options import CompileOptions
from prgec.core.data.batches import training_batch
from prgec.core.data.feedback_set import FeedbackSet
from prgec.core.data.row import Row
from prgec.lab.torch.program import TorchProgram
from prgec.runtime.training.feedback import Feedback, measure_reference
from prgec.runtime.training.objective_trainer import ObjectiveTrainer
from prgec.runtime.training.objectives import OBJECTIVES
from tests.autograd import LoraFa
from tests.gradient_lockstep import by_site, flat
from tests.models import VOCAB_SIZE, TinyLlama
from tests.shared import Shared
from tests.training.test_objectives import FORMULAS, IS_GOOD, NUMBERS

ROWS, LENGTH = 6, 10


@pytest.fixture(scope="module")
def checkpoint(shared: Shared) -> Path:
    return shared.once("judged", lambda path: TinyLlama(num_layers=2).write(path))


@pytest.fixture(scope="module")
def program(checkpoint: Path) -> TorchProgram:
    options = CompileOptions(
        model=str(checkpoint),
        output=Path("unused.pte"),
        backend="portable",
        method="exact",
        optimizer="momentum",
        label_weights=True,
        batch_size=ROWS,
        seq_len=LENGTH,
        num_labels=4,
        rank=4,
        alpha=8.0,
        targets=("o_proj", "down_proj"),
        polyak=0.0,
    )
    return TorchProgram.build(options)


def _rows(seed: int) -> list[Row]:
    """Rows whose answers have from one to four tokens."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(ROWS):
        ids, num_labels = random.integers(3, VOCAB_SIZE, LENGTH + 1).tolist(), 1 + number % 4
        rows.append(Row(tuple(ids[:-1]), tuple(range(LENGTH - num_labels, LENGTH)), tuple(ids[-num_labels:])))
    return rows


def _logp(oracle: LoraFa, rows: list[Row]) -> Tensor:
    found = []
    for row in rows:
        logits = oracle.model(input_ids=torch.tensor([row.tokens]), use_cache=False).logits[0]
        of_labels = torch.log_softmax(logits.to(torch.float64), -1)[list(row.label_pos)]
        found.append(of_labels[range(len(row.targets)), list(row.targets)].sum())
    return torch.stack(found)


def _oracle(checkpoint: Path, state: dict[str, Tensor]) -> LoraFa:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    return LoraFa(model, state, alpha=8.0, a_seed=0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_is_that_of_the_objective(checkpoint: Path, program: TorchProgram, name: str) -> None:
    random, objective = np.random.default_rng(3), OBJECTIVES[name]
    state = {each: random.normal(0, 0.3, b.shape).astype(np.float32) for each, b in program.read_state().items()}
    program.write_state(state)
    program.forget_steps()
    rows, others = _rows(1), _rows(2)
    answers = FeedbackSet(rows, 2, (0,) * 3, tuple(IS_GOOD.tolist()), others if objective.needs_drift else ())
    reference = measure_reference(program, objective, answers)
    np.testing.assert_array_equal(list(program.read_state().values())[0], list(state.values())[0])
    trainer = ObjectiveTrainer(program, Feedback(objective, NUMBERS, answers, reference))
    step = trainer.step(training_batch(rows, np.arange(ROWS), program.manifest), 0.0)

    oracle, still = (
        _oracle(checkpoint, by_site({each: scale * b for each, b in state.items()})) for scale in (1.0, 0.0)
    )
    with torch.no_grad():
        before = _logp(still, rows)
        drift = _logp(oracle, others) - _logp(still, others)
    lengths = torch.tensor([float(len(row.targets)) for row in rows], dtype=torch.float64)
    loss = FORMULAS[name](_logp(oracle, rows), lengths, before, drift)
    expected = torch.autograd.grad(loss, list(oracle.leaves.values()))
    assert step.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    # Momentum keeps the gradient with another length, which the step returns.
    kept = [b for key, b in program.read_optimizer().items() if key.endswith("_mean")]
    found, wanted = (flat(each) for each in (kept, expected))
    assert step.norm == pytest.approx(np.linalg.norm(wanted), rel=1e-5)
    found *= step.norm / np.linalg.norm(found)
    assert np.linalg.norm(found - wanted) < 1e-4 * np.linalg.norm(wanted)
