"""Tiny random models of every architecture prgec promises to compile, and how each compiled one compares.

One layer each, two where layers differ. Sequences are longer than every sliding window.

Letters: q queries, B examples a step, N = 2qB rows, T tokens, K label positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prgec.core.contract.calls import Batch, StepInputs
from tests.models import VOCAB_SIZE, write_tokenizer

WINDOW = 5
SEQ_LEN = 16
LENGTHS = (2, WINDOW, WINDOW + 1, SEQ_LEN)
_HIDDEN = 32
_DECODER = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": _HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Architecture:
    """One architecture.

    Attributes:
        name: As people call it.
        model_type: `model_type` of its config.json.
        options: Fields of the config.
        features: Features that a Llama lacks.
        num_sites: Linear layers that `all-linear` trains.
    """

    name: str
    model_type: str
    options: dict[str, Any]
    features: str
    num_sites: int

    def build(self, seed: int = 0) -> torch.nn.Module:
        """Return the model, f32, in evaluation mode, with random values in every parameter."""
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(self.model_type, **self.options)
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config).eval()
        randomise(model, seed)
        return model

    @property
    def num_layers(self) -> int:
        """Decoder blocks."""
        return int(self.options.get("n_layer", self.options.get("num_hidden_layers", 1)))

    def deeper(self, num_layers: int) -> Architecture:
        """Return it with more blocks; what a config lists by block goes round."""
        by_block = {key: value for key, value in self.options.items() if isinstance(value, list)}
        longer = {key: [value[n % len(value)] for n in range(num_layers)] for key, value in by_block.items()}
        depth = "n_layer" if "n_layer" in self.options else "num_hidden_layers"
        num_sites = self.num_sites // self.num_layers * num_layers
        return replace(self, options={**self.options, **longer, depth: num_layers}, num_sites=num_sites)

    def write(self, folder: Path) -> Path:
        """Write a checkpoint with a tokenizer into `folder`, created if missing; return it."""
        self.build().save_pretrained(folder)  # type: ignore[operator]
        write_tokenizer(folder, "json")
        return folder


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Give every parameter a value that matters: a lost bias, norm weight or position must move the loss."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2:
                parameter.copy_(noise / math.sqrt(_HIDDEN))
            else:
                parameter.copy_(0.2 * noise + (1.0 if name.endswith(".weight") else 0.0))


def _decoder(**changes: Any) -> dict[str, Any]:
    return {**_DECODER, **changes}


def _gpt2() -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "n_embd": _HIDDEN,
        "n_inner": 48,
        "n_layer": 1,
        "n_head": 4,
        "n_positions": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def _opt() -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": _HIDDEN,
        "word_embed_proj_dim": _HIDDEN,
        "ffn_dim": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


ARCHITECTURES = (
    Architecture("Llama", "llama", _decoder(), "grouped queries", 7),
    Architecture("Mistral", "mistral", _decoder(sliding_window=WINDOW), "sliding window", 7),
    Architecture("Qwen2", "qwen2", _decoder(tie_word_embeddings=True), "q/k/v biases, tied embeddings", 7),
    Architecture("Qwen3", "qwen3", _decoder(head_dim=12), "q/k norms, head width apart from the model's", 7),
    Architecture(
        "Gemma 2",
        "gemma2",
        _decoder(
            num_hidden_layers=2,
            head_dim=12,
            sliding_window=WINDOW,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=3.0,
        ),
        "soft caps, a sliding window in every other layer, tied embeddings",
        14,
    ),
    Architecture(
        "Gemma 3",
        "gemma3_text",
        _decoder(
            num_hidden_layers=2,
            head_dim=12,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"],
            query_pre_attn_scalar=20,
        ),
        "q/k norms, local and global RoPE, sliding window, tied embeddings",
        14,
    ),
    Architecture("Phi-3", "phi3", _decoder(), "fused qkv and gate_up", 4),
    Architecture(
        "SmolLM3",
        "smollm3",
        _decoder(num_hidden_layers=2, no_rope_layers=[1, 0]),
        "layers without RoPE, tied embeddings",
        14,
    ),
    Architecture("OPT", "opt", _opt(), "learned positions, LayerNorm, biases, tied embeddings", 6),
    Architecture("GPT-2", "gpt2", _gpt2(), "Conv1D, fused qkv, learned positions, tanh GELU, tied embeddings", 4),
    Architecture(
        "GPT-NeoX", "gpt_neox", _decoder(rotary_pct=0.5), "qkv fused by head, partial RoPE, parallel residual, GELU", 4
    ),
    Architecture(
        "Granite",
        "granite",
        _decoder(embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.5, logits_scaling=2.0),
        "multipliers, tied embeddings",
        7,
    ),
)


def architecture(name: str) -> Architecture:
    """The architecture called `name`."""
    return next(each for each in ARCHITECTURES if each.name == name)


@dataclass(frozen=True)
class Measured:
    """The result of compiling one architecture, and how the program compares with transformers.

    Attributes:
        architecture: Its name.
        features: Features that a Llama lacks.
        sites: Trained layers.
        delegates: Ops in each delegate.
        cpu_ops: Calls outside all delegates by op and reason, as `(op, count, reason)`.
        max_rel_loss_diff: Largest relative difference of a loss from the untouched model's, with eps = 0 and g = 0.
        max_rel_train_diff: Largest relative difference of a loss from textbook MeZO's on the untouched model.
        max_abs_state: Largest |B| after training.
    """

    architecture: str
    features: str
    sites: int
    delegates: tuple[int, ...]
    cpu_ops: tuple[tuple[str, int, str], ...]
    max_rel_loss_diff: float
    max_rel_train_diff: float
    max_abs_state: float


def measure(each: Architecture, folder: Path, *, steps: int = 4, backend: str = "xnnpack") -> Measured:
    """Compile one architecture, with a dynamic T where the backend has it, evaluate it at several T, then train it.

    Args:
        each: Architecture to compile.
        folder: For the checkpoint and the program.
        steps: Training steps.
        backend: Backend to compile it for.
    """
    from prgec.compiler.compile import compile_model
    from prgec.compiler.options import CompileOptions
    from prgec.runtime.engines.executorch.open import open_pte
    from tests.lockstep import follow, oracle_for, random_steps

    checkpoint = each.write(folder / each.model_type)
    done = compile_model(
        CompileOptions(
            model=str(checkpoint),
            output=folder / f"{each.model_type}.pte",
            backend=backend,
            q=2,
            batch_size=1,
            seq_len=SEQ_LEN,
            num_labels=2,
            rank=4,
            alpha=8.0,
        )
    )
    program = open_pte(done.path)
    lengths = LENGTHS if program.manifest.dynamic_seq_len else (SEQ_LEN,)
    evaluated = max(_loss_difference(program, each.build(), length) for length in lengths)
    oracle = oracle_for(program, checkpoint, eps=1e-2, seed=5)
    trained = follow(program, oracle, random_steps(steps, program.manifest, lr=5e-3, pool=4))
    return Measured(
        each.name,
        each.features,
        len(done.manifest.sites),
        tuple(delegate.ops for delegate in done.delegation.delegates),
        tuple((op.op, op.count, op.reason) for op in done.delegation.cpu_ops),
        evaluated,
        trained.max_rel_loss_diff,
        trained.max_abs_state,
    )


def random_rows(num_rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random tokens, label positions and targets; the first row of two has one target only."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(3, VOCAB_SIZE, (num_rows, length), generator=generator)
    label_pos = torch.randint(0, length, (num_rows, 2), generator=generator)
    targets = torch.randint(3, VOCAB_SIZE, (num_rows, 2), generator=generator)
    targets[0, 1] = -100
    return tokens, label_pos, targets


def transformers_losses(
    model: torch.nn.Module, tokens: torch.Tensor, label_pos: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """The loss of every row as PyTorch defines it, f32[N], on logits of the model's own forward, row by row."""
    losses = []
    with torch.no_grad():
        for row, positions, answers in zip(tokens, label_pos, targets, strict=True):
            logits_TV = model(input_ids=row.unsqueeze(0)).logits[0]
            losses.append(torch.nn.functional.cross_entropy(logits_TV[positions], answers, ignore_index=-100))
    return torch.stack(losses)


def _loss_difference(program: Any, model: torch.nn.Module, length: int) -> float:
    """Largest relative difference between a program's losses and the model's at one T."""
    rows = random_rows(program.manifest.num_rows, length)
    expected = transformers_losses(model, *rows).numpy()
    found = program.forward(Batch(*(each.numpy() for each in rows)), StepInputs.none(program.manifest.q))
    return float((np.abs(found - expected) / np.abs(expected)).max())
