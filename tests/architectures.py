"""Tiny random models of every architecture prgec promises to compile.

One layer each, two where layers differ; sizes are chosen so that no two letters have the same value by accident and
the sequences of the tests are longer than every sliding window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.models import VOCAB_SIZE, write_tokenizer

WINDOW = 5
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
        features: What it has that a Llama has not.
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
    return {"vocab_size": VOCAB_SIZE, "n_embd": _HIDDEN, "n_inner": 48, "n_layer": 1, "n_head": 4, "n_positions": 64,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip


def _opt() -> dict[str, Any]:
    return {"vocab_size": VOCAB_SIZE, "hidden_size": _HIDDEN, "word_embed_proj_dim": _HIDDEN, "ffn_dim": 48,
            "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 64,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip


ARCHITECTURES = (
    Architecture("Llama", "llama", _decoder(), "grouped queries", 7),
    Architecture("Mistral", "mistral", _decoder(sliding_window=WINDOW), "sliding window", 7),
    Architecture("Qwen2", "qwen2", _decoder(tie_word_embeddings=True), "q/k/v biases, tied embeddings", 7),
    Architecture("Qwen3", "qwen3", _decoder(head_dim=12), "q/k norms, head width apart from the model's", 7),
    Architecture("Gemma 2", "gemma2", _decoder(num_hidden_layers=2, head_dim=12, sliding_window=WINDOW,
                 query_pre_attn_scalar=20, attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
                 "soft-capped attention and logits, every other layer a sliding window, tied embeddings", 14),
    Architecture("Gemma 3", "gemma3_text", _decoder(num_hidden_layers=2, head_dim=12, sliding_window=WINDOW,
                 layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=20),
                 "q/k norms, local and global RoPE, sliding window, tied embeddings", 14),
    Architecture("Phi-3", "phi3", _decoder(), "fused qkv and gate_up", 4),
    Architecture("SmolLM3", "smollm3", _decoder(num_hidden_layers=2, no_rope_layers=[1, 0]),
                 "layers without RoPE, tied embeddings", 14),
    Architecture("OPT", "opt", _opt(), "learned positions, LayerNorm, biases, tied embeddings", 6),
    Architecture("GPT-2", "gpt2", _gpt2(), "Conv1D, fused qkv, learned positions, tanh GELU, tied embeddings", 4),
    Architecture("GPT-NeoX", "gpt_neox", _decoder(rotary_pct=0.5),
                 "qkv fused by head, partial RoPE, parallel residual, GELU", 4),
    Architecture("Granite", "granite", _decoder(embedding_multiplier=3.0, attention_multiplier=0.2,
                 residual_multiplier=0.5, logits_scaling=2.0), "multipliers, tied embeddings", 7),
)  # fmt: skip


def architecture(name: str) -> Architecture:
    """The architecture called `name`."""
    return next(each for each in ARCHITECTURES if each.name == name)


Builder = Callable[[], torch.nn.Module]
