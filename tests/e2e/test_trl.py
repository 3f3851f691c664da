"""The gradient of B by each objective beside that of TRL's own trainers: same rows, same reference.

The model under TRL is the Hugging Face model with branches as forward hooks; rows are those of TRL's own batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from prgec.runtime.training.objectives import OBJECTIVES, Numbers
from tests.autograd import LoraFa
from tests.gradient_lockstep import by_site, flat
from tests.models import TinyLlama
from tests.shared import Shared

NUMBERS = Numbers(beta=0.3, gamma=0.2, desirable=1.3, undesirable=0.6)
PAIRS = [
    ("the film was", " great and it is good", " bad"),
    ("it is a", " good film", " bad film and the plot was bad"),
    ("the plot", " was great", " is bad and it was bad"),
]
SINGLES = [
    (prompt, answer, is_good)
    for prompt, *answers in PAIRS
    for answer, is_good in zip(answers, (True, False), strict=True)
]
RTOL = 1e-4


@pytest.fixture(scope="module")
def checkpoint(shared: Shared) -> Path:
    return shared.once("beside-trl", lambda path: TinyLlama(num_layers=2).write(path, tokenizer="json"))


@pytest.fixture(scope="module")
def program(checkpoint: Path) -> TorchProgram:
    sizes: dict[str, Any] = {"batch_size": len(SINGLES), "seq_len": 48, "num_labels": 32, "rank": 4, "alpha": 8.0}
    options = CompileOptions(
        model=str(checkpoint),
        output=Path("unused.pte"),
        backend="portable",
        method="exact",
        optimizer="momentum",
        label_weights=True,
        targets=("o_proj", "down_proj"),
        polyak=0.0,
        **sizes,
    )
    return TorchProgram.build(options)


class _Trl:
    """TRL's trainer for an objective, and the batch that holds all rows.

    Attributes:
        batch: As TRL collates it.
    """

    def __init__(self, name: str, checkpoint: Path, oracle: LoraFa, folder: Path) -> None:
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
        tokenizer.pad_token = tokenizer.eos_token
        arguments: dict[str, Any] = {
            "output_dir": str(folder),
            "per_device_train_batch_size": len(SINGLES) if name == "kto" else len(PAIRS),
            "use_cpu": True,
            "bf16": False,
            "report_to": [],
            "gradient_checkpointing": False,
            "beta": NUMBERS.beta,
        }
        keys = ("prompt", "completion", "label") if name == "kto" else ("prompt", "chosen", "rejected")
        rows = Dataset.from_list([dict(zip(keys, row, strict=True)) for row in (SINGLES if name == "kto" else PAIRS)])
        trained: dict[str, Any] = {"model": oracle.model, "processing_class": tokenizer, "train_dataset": rows}
        if name in ("dpo", "kto"):
            trained["ref_model"] = AutoModelForCausalLM.from_pretrained(checkpoint)
        self.name, self.trainer = name, _trainer(name, arguments, trained)
        self.batch = next(iter(self.trainer.get_train_dataloader()))

    def loss(self, model: Any) -> Tensor:
        if self.name == "orpo":
            # Its likelihood is over the prompt too, unlike the paper's: the answer's stands in for it.
            chosen, rejected, *_ = self.trainer.concatenated_forward(model, self.batch)
            ratio, *_ = self.trainer.odds_ratio_loss(chosen, rejected)
            loss: Tensor = -chosen.mean() - ratio.mean()
            return loss
        found: Tensor = self.trainer.compute_loss(model, self.batch)
        return found

    def rows(self, prefix: str = "") -> list[Row]:
        """Rows of the batch; of pairs as chosen, rejected."""
        batch = self.batch
        if "chosen_labels" in batch:
            ids = [each for kind in ("chosen", "rejected") for each in batch[f"{kind}_input_ids"]]
            labels = [each for kind in ("chosen", "rejected") for each in batch[f"{kind}_labels"]]
        else:
            ids = list(batch[f"{prefix}input_ids"])
            masks = batch[f"{prefix}completion_mask"]
            labels = [torch.where(mask == 1, each, -100) for mask, each in zip(masks, ids, strict=True)]
        rows = [_row(*pair) for pair in zip(ids, labels, strict=True)]
        half = len(rows) // 2
        if self.name == "kto":
            return rows
        return [row for pair in zip(rows[:half], rows[half:], strict=True) for row in pair]


def _row(ids: Tensor, labels: Tensor) -> Row:
    learned = torch.nonzero(labels != -100).flatten().tolist()
    whole = ids[: learned[-1] + 1].tolist()
    return Row(tuple(whole[:-1]), tuple(place - 1 for place in learned), tuple(whole[place] for place in learned))


def _trainer(name: str, arguments: dict[str, Any], trained: dict[str, Any]) -> Any:
    if name == "dpo":
        from trl import DPOConfig, DPOTrainer

        return DPOTrainer(args=DPOConfig(**arguments), **trained)
    if name == "kto":
        from trl import KTOConfig, KTOTrainer

        weights = {"desirable_weight": NUMBERS.desirable, "undesirable_weight": NUMBERS.undesirable}
        return KTOTrainer(args=KTOConfig(train_sampling_strategy="sequential", **weights, **arguments), **trained)
    if name == "orpo":
        from trl.experimental.orpo import ORPOConfig, ORPOTrainer

        return ORPOTrainer(args=ORPOConfig(**arguments), **trained)
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    arguments |= {"loss_type": "simpo", "simpo_gamma": NUMBERS.gamma, "cpo_alpha": 0.0}
    return CPOTrainer(args=CPOConfig(**arguments), **trained)


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_is_that_of_trl(checkpoint: Path, program: TorchProgram, name: str, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from transformers import AutoModelForCausalLM

    random, objective = np.random.default_rng(5), OBJECTIVES[name]
    state = {each: random.normal(0, 0.3, b.shape).astype(np.float32) for each, b in program.read_state().items()}
    model = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    oracle = LoraFa(model, by_site(state), alpha=8.0, a_seed=0)
    trl = _Trl(name, checkpoint, oracle, tmp_path)
    model.eval()
    expected = _gradient(trl.loss(model), oracle)

    program.write_state(state)
    program.forget_steps()
    rows = trl.rows()
    is_good = trl.batch["label"].bool().tolist() if name == "kto" else [True, False] * len(PAIRS)
    answers = FeedbackSet(rows, 2, (0,) * len(PAIRS), tuple(is_good), trl.rows("KL_") if objective.needs_drift else ())
    reference = measure_reference(program, objective, answers)
    trainer = ObjectiveTrainer(program, Feedback(objective, NUMBERS, answers, reference))
    step = trainer.step(training_batch(rows, np.arange(len(rows)), program.manifest), 0.0)
    kept = flat([b for key, b in program.read_optimizer().items() if key.endswith("_mean")])
    found = kept * step.norm / np.linalg.norm(kept)
    wanted = flat(expected)
    assert np.linalg.norm(found - wanted) < RTOL * np.linalg.norm(wanted)


def _gradient(loss: Tensor, oracle: LoraFa) -> Sequence[Tensor]:
    return torch.autograd.grad(loss, list(oracle.leaves.values()))
