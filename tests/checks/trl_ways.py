"""Feedback by TRL, measured in this process: `python -m tests.checks.trl_ways JOB` prints rewards and CPU seconds."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prgec.runtime.rewards.process import RewardLimits, RewardProcess
from prgec.runtime.rewards.source import parse_rewards

# Answers that are written at once by an evaluation.
_EVALUATION_BATCH = 8
# Training prompts whose sampled answers say how far the model has come from the start.
_DIVERGENCE_PROMPTS = 8


@dataclass(frozen=True, kw_only=True)
class TrlJob:
    """A run of one of TRL's trainers over PEFT's LoRA.

    Attributes:
        model: Checkpoint folder.
        objective: `grpo` or `dpo`; empty for none, which measures the model as it is.
        task: Folder of the task that is learnt (`tests.checks.feedback_tasks`).
        tasks: Folders of the tasks whose held-out rewards are measured.
        steps: Training steps.
        batch: Answers a step; two a pair.
        tokens: Most tokens of an answer.
        lr: Learning rate, which falls to 0.
        temperature: Temperature of sampled answers.
        top_p: Share of the probability that is sampled from.
        beta: Cost of a unit of the distance to the start; of `dpo`, its sharpness.
        seed: Seed of everything.
    """

    model: str
    objective: str
    task: str
    tasks: Sequence[str]
    steps: int
    batch: int
    tokens: int
    lr: float
    temperature: float
    top_p: float
    beta: float
    seed: int


def measure(job: TrlJob) -> dict[str, Any]:
    """Return the CPU seconds of loading and training, held-out rewards by task, and nats a token from the start."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job.model)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32)
    divergence = None
    if job.objective:
        with tempfile.TemporaryDirectory() as folder:
            trainer = _TRAINERS[job.objective](job, model, tokenizer, folder)
            trainer.train()
        model = trainer.model
    used = resource.getrusage(resource.RUSAGE_SELF)
    model.eval()
    if job.objective:
        divergence = _divergence(model, tokenizer, job)
    rewards = {task: _score(model, tokenizer, Path(task), job) for task in job.tasks}
    return {"cpu": used.ru_utime + used.ru_stime, "rewards": rewards, "kl": divergence}


def _settings(job: TrlJob, folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "max_steps": job.steps,
        "learning_rate": job.lr,
        "lr_scheduler_type": "linear",
        "beta": job.beta,
        "seed": job.seed,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "logging_steps": job.steps,
        "save_strategy": "no",
        "disable_tqdm": True,
    }


def _adapter() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


def _grpo(job: TrlJob, model: Any, tokenizer: Any, folder: str) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    judge = _judge(Path(job.task))

    def reward(prompts: list[Any], completions: list[Any], **fields: list[Any]) -> list[float]:
        # The other fields are of TRL itself.
        records = [{"answer": answer} for answer in fields["answer"]]
        return [
            judge.score(prompt, answer[0]["content"], record)
            for prompt, answer, record in zip(prompts, completions, records, strict=True)
        ]

    config = GRPOConfig(
        per_device_train_batch_size=job.batch,
        num_generations=job.batch,
        max_completion_length=job.tokens,
        temperature=job.temperature,
        top_p=job.top_p,
        loss_type="grpo",
        **_settings(job, folder),
    )
    rows = Dataset.from_list(_rows(Path(job.task) / "train.jsonl"))
    return GRPOTrainer(
        model, reward, args=config, train_dataset=rows, processing_class=tokenizer, peft_config=_adapter()
    )


def _dpo(job: TrlJob, model: Any, tokenizer: Any, folder: str) -> Any:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    config = DPOConfig(per_device_train_batch_size=job.batch // 2, max_length=None, **_settings(job, folder))
    rows = Dataset.from_list(_rows(Path(job.task) / "pairs.jsonl"))
    return DPOTrainer(model, args=config, train_dataset=rows, processing_class=tokenizer, peft_config=_adapter())


_TRAINERS = {"grpo": _grpo, "dpo": _dpo}


def _divergence(model: Any, tokenizer: Any, job: TrlJob) -> float:
    """Return the mean of log pi - log pi_0 over the tokens of sampled answers to training prompts."""
    import torch

    total, count = 0.0, 0
    for row in _rows(Path(job.task) / "train.jsonl")[:_DIVERGENCE_PROMPTS]:
        ids = _encode(tokenizer, [row["prompt"]])
        start = ids["input_ids"].shape[1]
        with torch.inference_mode():
            whole = model.generate(
                **ids, max_new_tokens=job.tokens, do_sample=True, temperature=job.temperature, top_p=job.top_p, top_k=0
            )
            trained = _log_likelihoods(model, whole, start)
            with model.disable_adapter():
                first = _log_likelihoods(model, whole, start)
        total += float((trained - first).sum())
        count += trained.numel()
    return total / count


def _log_likelihoods(model: Any, ids: Any, start: int) -> Any:
    """Return those of the tokens from `start`, f32[answer]."""
    logits = model(ids).logits[0, start - 1 : -1].log_softmax(-1)
    return logits.gather(-1, ids[0, start:, None])[:, 0]


def _encode(tokenizer: Any, turns: list[Any]) -> Any:
    tokenizer.padding_side = "left"
    return tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
    )


def _score(model: Any, tokenizer: Any, task: Path, job: TrlJob) -> float:
    """Return the mean reward of greedy answers to the held-out prompts."""
    import torch

    rows, answers = _rows(task / "held-out.jsonl"), []
    for first in range(0, len(rows), _EVALUATION_BATCH):
        turns = [row["prompt"] for row in rows[first : first + _EVALUATION_BATCH]]
        ids = _encode(tokenizer, turns)
        with torch.inference_mode():
            whole = model.generate(**ids, max_new_tokens=job.tokens, do_sample=False, temperature=None, top_p=None)
        answers += tokenizer.batch_decode(whole[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    judge = _judge(task)
    rewards = [judge.score(row["prompt"], answer.strip(), row) for row, answer in zip(rows, answers, strict=True)]
    judge.close()
    return statistics.mean(rewards)


def _judge(task: Path) -> RewardProcess:
    return RewardProcess(parse_rewards([str(task / "reward.toml")]), RewardLimits())


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def to_json(job: TrlJob) -> str:
    """Return the input of the process."""
    return json.dumps(asdict(job))


if __name__ == "__main__":
    print(json.dumps(measure(TrlJob(**json.loads(sys.argv[1])))))
