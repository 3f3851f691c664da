"""The gradient of B by rewards beside that of TRL's own trainers: their answers, their advantages, the same rewards.

TRL samples with the Hugging Face model; its rows and the rewards of its own reward function go through our weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from prgec.compiler.options import CompileOptions
from prgec.core.contract.arrays import Float64Array, State
from prgec.core.contract.calls import Batch
from prgec.core.data.batches import training_batch
from prgec.core.data.row import Row
from prgec.lab.torch.program import TorchProgram
from prgec.runtime.training.advantages import ADVANTAGES
from prgec.runtime.training.reward_trainer import RewardStep, RewardTrainer
from prgec.runtime.training.rollouts import Collected, Rollouts, training_row
from prgec.runtime.training.sampling import Sampling
from tests.autograd import LoraFa
from tests.gradient_lockstep import by_site, flat
from tests.models import TinyLlama
from tests.shared import Shared

PROMPTS = ("the film was", "it is a good")
GROUP, LONGEST = 4, 7
RTOL = 1e-4


@pytest.fixture(scope="module")
def checkpoint(shared: Shared) -> Path:
    return shared.once("beside-trl-rewards", lambda path: TinyLlama(num_layers=2).write(path, tokenizer="json"))


@pytest.fixture(scope="module")
def program(checkpoint: Path) -> TorchProgram:
    sizes: dict[str, Any] = {"seq_len": 24, "num_labels": LONGEST, "rank": 4, "alpha": 8.0}
    options = CompileOptions(
        model=str(checkpoint),
        output=Path("unused.pte"),
        backend="portable",
        method="exact",
        optimizer="momentum",
        label_weights=True,
        batch_size=len(PROMPTS) * GROUP,
        targets=("o_proj", "down_proj"),
        polyak=0.0,
        **sizes,
    )
    return TorchProgram.build(options)


class _OfTrl(Rollouts):
    """Rollouts whose answers TRL has written."""

    collected: Collected

    def collect(self, numbers: Any, step: int, call: int = 0) -> Collected:
        return self.collected


def _state(program: TorchProgram, seed: int, scale: float) -> State:
    random = np.random.default_rng(seed)
    return {each: random.normal(0, scale, b.shape).astype(np.float32) for each, b in program.read_state().items()}


def _scored(name: str, checkpoint: Path, oracle: LoraFa, folder: Path) -> tuple[Any, dict[str, Tensor], list[float]]:
    """Return TRL's trainer, its batch of answers, and their rewards."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    rewards: list[float] = []

    def reward(completions: list[str], **_: Any) -> list[float]:
        found = [float(len(text) % 5) for text in completions]
        rewards.extend(found)
        return found

    arguments: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": len(PROMPTS) * GROUP,
        "num_generations": GROUP,
        "max_completion_length": LONGEST,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "gradient_checkpointing": False,
        "beta": 0.0,
        "shuffle_dataset": False,
        # Some answers end before they are cut.
        "generation_kwargs": {"sequence_bias": [[[tokenizer.eos_token_id], 5.0]]},
    }
    rows = Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS])
    made: dict[str, Any] = {
        "model": oracle.model,
        "reward_funcs": [reward],
        "processing_class": tokenizer,
        "train_dataset": rows,
    }
    trainer: Any
    if name == "rloo":
        from trl import RLOOConfig, RLOOTrainer

        trainer = RLOOTrainer(args=RLOOConfig(**arguments), **made)
    else:
        from trl import GRPOConfig, GRPOTrainer

        how = {"loss_type": "grpo"} if name == "grpo" else {"loss_type": "dr_grpo", "scale_rewards": "none"}
        trainer = GRPOTrainer(args=GRPOConfig(**how, **arguments), **made)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    torch.manual_seed(3)
    batch = trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
    return trainer, batch, rewards


def _rows(batch: dict[str, Tensor]) -> list[Row]:
    parts = (batch[f"{part}_{kind}"] for part in ("prompt", "completion") for kind in ("ids", "mask"))
    return [
        training_row(prompt[kept.bool()].tolist(), answer[counted.bool()].tolist())
        for prompt, kept, answer, counted in zip(*parts, strict=True)
    ]


def _rewards(values: list[float]) -> Float64Array:
    return np.array(values, dtype=np.float64)


def _rollouts(program: TorchProgram, collected: Collected, **changes: Any) -> _OfTrl:
    rollouts = _OfTrl(
        program=program,
        prompts=(),
        scorer=lambda step, call, answers: collected.rewards,
        group=GROUP,
        max_tokens=LONGEST,
        sampling=Sampling(),
        **changes,
    )
    object.__setattr__(rollouts, "collected", collected)
    return rollouts


def _gradient(program: TorchProgram, norm: float) -> np.ndarray:
    """Return the gradient of the only step so far."""
    kept = flat([b for key, b in program.read_optimizer().items() if key.endswith("_mean")])
    return kept * norm / np.linalg.norm(kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", ADVANTAGES)
def test_the_gradient_is_that_of_trl(checkpoint: Path, program: TorchProgram, name: str, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from transformers import AutoModelForCausalLM

    state = _state(program, 7, 0.3)
    oracle = LoraFa(AutoModelForCausalLM.from_pretrained(checkpoint), by_site(state), alpha=8.0, a_seed=0)
    trainer, batch, rewards = _scored(name, checkpoint, oracle, tmp_path)
    assert len(set(rewards)) > 1 and len({len(row.targets) for row in _rows(batch)}) > 1
    wanted = flat(torch.autograd.grad(trainer.compute_loss(oracle.model, batch), list(oracle.leaves.values())))

    program.write_state(state)
    program.forget_steps()
    ours = RewardTrainer(program, _rollouts(program, Collected(_rows(batch), _rewards(rewards))), ADVANTAGES[name])
    found = _gradient(program, ours.step(_any_batch(_rows(batch), program), 0.0).norm)
    assert np.linalg.norm(found - wanted) < RTOL * np.linalg.norm(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_a_later_step_is_that_of_trl(checkpoint: Path, program: TorchProgram, name: str, tmp_path: Path) -> None:
    """After the state moved, so that ratios are not 1 and some of them are clipped."""
    pytest.importorskip("trl")
    from transformers import AutoModelForCausalLM

    before = _state(program, 7, 0.3)
    now = {key: b + 0.1 * _state(program, 8, 1.0)[key] for key, b in before.items()}
    oracle = LoraFa(AutoModelForCausalLM.from_pretrained(checkpoint), by_site(before), alpha=8.0, a_seed=0)
    trainer, batch, rewards = _scored(name, checkpoint, oracle, tmp_path)
    trainer.importance_sampling_level = "sequence"
    old = _log_likelihoods(oracle.model, _rows(batch))
    batch |= {"old_per_token_logps": _per_token(old, batch), "old_logps": torch.tensor([each.sum() for each in old])}
    with torch.no_grad():
        for leaf, b in zip(oracle.leaves.values(), by_site(now).values(), strict=True):
            leaf.copy_(torch.as_tensor(b))
    wanted = flat(torch.autograd.grad(trainer.compute_loss(oracle.model, batch), list(oracle.leaves.values())))

    program.write_state(now)
    program.forget_steps()
    losses = -np.array([float(each.mean()) for each in old])
    collected = Collected(_rows(batch), _rewards(rewards), losses)
    rollouts = _rollouts(program, collected, iterations=2, recall=lambda step, call: collected)
    ours = RewardTrainer(program, rollouts, ADVANTAGES[name])
    ours.step_number = 1
    result = ours.step(_any_batch(_rows(batch), program), 0.0)
    found = _gradient(program, result.norm)
    assert isinstance(result, RewardStep) and 0 < result.clipped < 1
    assert np.linalg.norm(found - wanted) < RTOL * np.linalg.norm(wanted)


def _log_likelihoods(model: Any, rows: list[Row]) -> list[Tensor]:
    """Return those of the tokens of each answer, by the Hugging Face model, one row at a time."""
    found = []
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor([row.tokens])).logits[0, list(row.label_pos)]
        found.append(logits.log_softmax(-1).gather(-1, torch.tensor(row.targets)[:, None])[:, 0])
    return found


def _per_token(found: list[Tensor], batch: dict[str, Tensor]) -> Tensor:
    """Return them where TRL has the tokens of answers."""
    out = torch.zeros(batch["completion_ids"].shape)
    for row, each in zip(out, found, strict=True):
        row[: len(each)] = each
    return out


def _any_batch(rows: list[Row], program: TorchProgram) -> Batch:
    return training_batch(rows, np.arange(len(rows)), program.manifest)
