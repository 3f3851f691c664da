"""GRPO by TRL, measured in this process: `python -m tests.checks.trl_ways JOB` prints rewards and CPU seconds."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prgec.runtime.rewards.process import RewardLimits, RewardProcess
from prgec.runtime.rewards.source import parse_rewards


@dataclass(frozen=True)
class TrlJob:
    """A run of TRL's trainer over PEFT's LoRA.

    Attributes:
        model: Checkpoint folder.
        data: Prompts to learn from: `prompt` (turns) and further fields.
        held_out: Prompts of evaluations.
        reward: File of rewards.
        steps: Training steps.
        batch: Answers a step.
        group: Answers to each prompt.
        tokens: Most tokens of an answer.
        lr: Learning rate.
        temperature: Temperature of sampled answers.
        top_p: Share of the probability that is sampled from.
        beta: Cost of a unit of the distance to the start.
        seed: Seed of everything.
    """

    model: str
    data: str
    held_out: str
    reward: str
    steps: int
    batch: int
    group: int
    tokens: int
    lr: float
    temperature: float
    top_p: float
    beta: float
    seed: int


def measure(job: TrlJob) -> dict[str, Any]:
    """Mean rewards of the most likely answers to held-out prompts before and after, and CPU seconds of the training."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(job.model)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32)
    judge = RewardProcess(parse_rewards([job.reward]), RewardLimits())
    judge.start()

    def reward(prompts: list[Any], completions: list[Any], **fields: list[Any]) -> list[float]:
        # The other fields are of TRL itself.
        records = [{"answer": answer} for answer in fields["answer"]]
        return [
            judge.score(prompt, answer[0]["content"], record)
            for prompt, answer, record in zip(prompts, completions, records, strict=True)
        ]

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=job.steps,
            per_device_train_batch_size=job.batch,
            num_generations=job.group,
            max_completion_length=job.tokens,
            learning_rate=job.lr,
            lr_scheduler_type="linear",
            temperature=job.temperature,
            top_p=job.top_p,
            beta=job.beta,
            loss_type="grpo",
            seed=job.seed,
            use_cpu=True,
            bf16=False,
            report_to=[],
            logging_steps=job.steps,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model,
            reward,
            args=config,
            train_dataset=Dataset.from_list(_rows(job.data)),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=16, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        before = _score(trainer.model, tokenizer, judge, job)
        started = _cpu_seconds()
        trainer.train()
        seconds = _cpu_seconds() - started
    after = _score(trainer.model, tokenizer, judge, job)
    judge.close()
    return {"before": before, "after": after, "cpu": seconds}


def _score(model: Any, tokenizer: Any, judge: RewardProcess, job: TrlJob) -> float:
    """Return the mean reward of greedy answers to the held-out prompts."""
    import torch

    rewards = []
    for row in _rows(job.held_out):
        ids = tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            whole = model.generate(**ids, max_new_tokens=job.tokens, do_sample=False, temperature=None, top_p=None)
        answer = tokenizer.decode(whole[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        rewards.append(judge.score(row["prompt"], answer.strip(), row))
    return sum(rewards) / len(rewards)


def _rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def to_json(job: TrlJob) -> str:
    """Return the input of the process."""
    return json.dumps(asdict(job))


if __name__ == "__main__":
    print(json.dumps(measure(TrlJob(**json.loads(sys.argv[1])))))
