"""P-RGE with LoRA-FA in eager PyTorch: all 2q perturbed copies in one batched forward.

It exists to choose the demo's defaults without compiling anything. It shares the driver's tables of
estimators and schedules, so that what is measured is what ships; the model, the adapters and the noise are its own.
Letters: q queries, B examples a step, N = 2qB rows, T tokens, D width, r rank.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from prgec.training.estimators import find_estimator
from prgec.training.schedules import find_schedule

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

Example = tuple[list[int], int]  # prompt tokens, index of the label word


@dataclass(frozen=True)
class Settings:
    """One fine-tuning run.

    Attributes:
        estimator: Row of the driver's estimator table.
        schedule: Row of the driver's schedule table.
    """

    estimator: str = "plain"
    lr: float = 0.003
    schedule: str = "linear"
    eps: float = 1e-2
    steps: int = 600
    q: int = 4
    batch_size: int = 4
    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ALL_LINEAR


class LoraFa(torch.nn.Module):
    """A frozen linear layer with branch alpha/r * B^T (A x); `copies` f32[2q, r, out] overrides B when set."""

    def __init__(self, base: torch.nn.Linear, settings: Settings, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.scale = settings.alpha / settings.rank
        self.frozen_a = torch.randn(settings.rank, base.in_features, generator=generator) / base.in_features**0.5
        self.master = torch.zeros(settings.rank, base.out_features)
        self.copies: torch.Tensor | None = None

    def forward(self, x_NTD: torch.Tensor) -> torch.Tensor:
        """Return f32[N, T, out]; with copies set, N must be ordered by copy."""
        down = torch.nn.functional.linear(x_NTD, self.frozen_a)
        if self.copies is None:
            return self.base(x_NTD) + self.scale * (down @ self.master)
        grouped = down.reshape(self.copies.shape[0], -1, down.shape[-1])
        up = torch.bmm(grouped, self.copies)
        return self.base(x_NTD) + self.scale * up.reshape(*x_NTD.shape[:-1], -1)


class Trainer:
    """A model, its label words and the state of one run.

    Args:
        folder: Checkpoint in the Hugging Face layout.
        settings: The run.
        seed: Seed of A, of the noise and of the order of the examples.
    """

    def __init__(self, folder: Path, settings: Settings, seed: int) -> None:
        self.settings = settings
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
        self.model.requires_grad_(False)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.label_ids = torch.tensor([self._label_token(word) for word in ("terrible", "great")])
        self.generator = torch.Generator().manual_seed(seed)
        self.order = random.Random(f"examples/{seed}")
        self.sites = [self._inject(name) for name in _linear_names(self.model, settings.targets)]

    def read(self, path: Path) -> list[Example]:
        """Examples of a jsonl file with `sentence` and `label`, prompt `<text> It was`."""
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [(self.tokenizer(row["sentence"] + " It was")["input_ids"], row["label"]) for row in rows]

    @torch.no_grad()
    def accuracy(self, examples: Sequence[Example]) -> tuple[float, float]:
        """Fraction labelled right, comparing the two label words, and the mean loss over the full vocabulary."""
        correct, loss = 0, 0.0
        by_length = sorted(examples, key=lambda example: len(example[0]))
        for first in range(0, len(by_length), 64):
            log_probs, labels = self._label_log_probs(by_length[first : first + 64], copies=1)
            correct += int((log_probs[:, self.label_ids].argmax(dim=1) == labels).sum())
            loss -= float(log_probs.gather(1, self.label_ids[labels][:, None]).sum())
        return correct / len(examples), loss / len(examples)

    @torch.no_grad()
    def train(self, examples: Sequence[Example], report: Callable[[int, float], None]) -> None:
        """Run all steps; `report(step, loss)` is called after each with the mean loss of the rows."""
        settings = self.settings
        estimator, schedule = find_estimator(settings.estimator), find_schedule(settings.schedule)
        stream = _epochs(examples, settings.batch_size, self.order)
        for step in range(settings.steps):
            noise = [torch.randn(settings.q, *site.master.shape, generator=self.generator) for site in self.sites]
            for site, z in zip(self.sites, noise, strict=True):
                shifted = torch.stack((settings.eps * z, -settings.eps * z), dim=1).flatten(0, 1)
                site.copies = site.master + shifted
            log_probs, labels = self._label_log_probs(next(stream), copies=2 * settings.q)
            losses = -log_probs.gather(1, self.label_ids[labels][:, None]).reshape(settings.q, 2, -1).mean(dim=2)
            plus, minus = losses.double().numpy().T
            g = torch.from_numpy(estimator.coefficients(plus, minus, settings.eps)).float()
            lr = settings.lr * schedule(step / settings.steps)
            for site, z in zip(self.sites, noise, strict=True):
                site.master -= lr / settings.q * torch.einsum("i,iro->ro", g, z)
                site.copies = None
            report(step + 1, float(losses.mean()))

    def _label_log_probs(self, examples: Sequence[Example], copies: int) -> tuple[torch.Tensor, torch.Tensor]:
        prompts = [torch.tensor(prompt) for prompt, _ in examples]
        tokens = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True).repeat(copies, 1)
        last = torch.tensor([len(prompt) - 1 for prompt in prompts]).repeat(copies)
        hidden = self.model.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = self.model.lm_head(hidden[torch.arange(len(last)), last])
        return torch.log_softmax(logits, dim=-1), torch.tensor([label for _, label in examples]).repeat(copies)

    def _label_token(self, word: str) -> int:
        ids = self.tokenizer(f"It was {word}")["input_ids"]
        prefix = self.tokenizer("It was")["input_ids"]
        if len(ids) != len(prefix) + 1:
            raise ValueError(f"label word '{word}' is not one token")
        return int(ids[-1])

    def _inject(self, name: str) -> LoraFa:
        parent_name, _, leaf = name.rpartition(".")
        parent = self.model.get_submodule(parent_name)
        site = LoraFa(getattr(parent, leaf), self.settings, self.generator)
        setattr(parent, leaf, site)
        return site


def _linear_names(model: torch.nn.Module, targets: Sequence[str]) -> list[str]:
    modules = dict(model.named_modules())
    return [name for name in modules if name.rpartition(".")[2] in targets]


def _epochs(examples: Sequence[Example], size: int, rng: random.Random) -> Iterator[list[Example]]:
    pool: list[Example] = []
    while True:
        if len(pool) < size:
            pool = rng.sample(list(examples), len(examples))
        yield pool[:size]
        pool = pool[size:]
