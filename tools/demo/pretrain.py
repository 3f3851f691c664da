"""Pretraining of the demo model: next-token prediction over whole documents, on the CPU, in minutes."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

LOG = logging.getLogger(__name__)

_IGNORED = -100
_BUCKET = 64  # batches drawn from one shuffled pool, sorted by length so that rows of a batch are alike


@dataclass(frozen=True)
class Pretraining:
    """Recipe of the base model.

    Attributes:
        epochs: Passes over the documents.
        batch_size: Documents an optimiser step.
        lr: Peak learning rate of AdamW, after a short warm-up and before a cosine decay.
        seed: Seed of the weights and of the order of the documents.
    """

    epochs: int = 2
    batch_size: int = 48
    lr: float = 3e-3
    seed: int = 0


def model_config(vocab_size: int) -> LlamaConfig:
    """A Llama with grouped-query attention, so that k_proj and v_proj are not square."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )


def pretrain(texts: Sequence[str], folder: Path, recipe: Pretraining, config: LlamaConfig | None = None) -> float:
    """Train on `texts` with the tokenizer in `folder` and save the checkpoint there.

    Args:
        texts: Documents.
        folder: Holds the tokenizer; gets config.json and the weights.
        recipe: How to train.
        config: Architecture; that of the demo where None.

    Returns:
        Mean loss in nats a token over the last 100 steps.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    rows = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(list(texts))["input_ids"]]
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(config or model_config(len(tokenizer)))
    loss = _train(model, rows, recipe)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, max_length=128)
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone
    return loss


def _train(model: LlamaForCausalLM, rows: Sequence[list[int]], recipe: Pretraining) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, betas=(0.9, 0.98), weight_decay=0.05)
    num_steps = recipe.epochs * (len(rows) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _lr_factor(step, num_steps))
    losses: list[float] = []
    start = time.perf_counter()
    for step, tokens in enumerate(_batches(rows, recipe)):
        logits = model(input_ids=tokens.clamp(min=0)).logits
        shifted = logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(shifted, tokens[:, 1:].flatten(), ignore_index=_IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 100 == 99:
            seconds = time.perf_counter() - start
            LOG.info("step %d/%d: loss %.3f, %.0f s", step + 1, num_steps, _tail_mean(losses), seconds)
    return _tail_mean(losses)


def _lr_factor(step: int, num_steps: int) -> float:
    warmup = min(1.0, (step + 1) / 50)
    return warmup * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / num_steps))))


def _batches(rows: Sequence[list[int]], recipe: Pretraining) -> Iterator[torch.Tensor]:
    """Yield i64[batch, T] of similar lengths, right-padded with -100 (causal attention never looks there)."""
    rng = random.Random(f"order/{recipe.seed}")
    order = list(range(len(rows)))
    pool_size = recipe.batch_size * _BUCKET
    for _ in range(recipe.epochs):
        rng.shuffle(order)
        batches = []
        for first in range(0, len(order), pool_size):
            pool = sorted(order[first : first + pool_size], key=lambda index: len(rows[index]))
            batches += [pool[i : i + recipe.batch_size] for i in range(0, len(pool), recipe.batch_size)]
        full = [batch for batch in batches if len(batch) == recipe.batch_size]
        rng.shuffle(full)
        for batch in full:
            tensors = [torch.tensor(rows[index]) for index in batch]
            yield torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=_IGNORED)


def _tail_mean(losses: Sequence[float]) -> float:
    tail = losses[-100:]
    return sum(tail) / len(tail)
