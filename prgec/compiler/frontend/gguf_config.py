"""The equivalent of config.json for a GGUF file: the table of supported architectures, and their sizes.

Keys after llama.cpp's gguf-py/gguf/constants.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prgec.core.formats.gguf_file import GgufFile
from prgec.errors import CheckpointError

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
# Divisors of the frequencies of positions; not a weight of a layer.
ROPE_FACTORS = "rope_freqs.weight"
# Scaling of Llama 3.1 and later, but for its factor; the file has no keys of it.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_NO_SCALING = "none"
_LLAMA_THETA = 10_000.0
# Gemma 3 divides scores by the root of another number in its 62-block model, and no key says so.
_GEMMA_27B_BLOCKS = 62


@dataclass(frozen=True)
class Architecture:
    """How transformers calls a model of llama.cpp's.

    Attributes:
        model_type: In config.json.
        class_name: Class of the causal language model.
        is_permuted: Whether rows of q and k are stored in pairs, as llama.cpp's RoPE wants them.
        norm_offset: Number that was added to the weights of norms in the file.
        norms: Names of a block's norms in the file and in transformers, where they are not Llama's.
        theta: Base of RoPE where the file does not say it.
    """

    model_type: str
    class_name: str
    is_permuted: bool = False
    norm_offset: float = 0.0
    norms: Mapping[str, str] = field(default_factory=lambda: {"ffn_norm": "post_attention_layernorm"})
    theta: float = _LLAMA_THETA


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", "LlamaForCausalLM", is_permuted=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM"),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        norm_offset=1.0,
        norms={
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        theta=1_000_000.0,
    ),
}


def architecture_of(file: GgufFile) -> Architecture:
    """Return the row of the table for a file.

    Raises:
        CheckpointError: If there is none.
    """
    found = ARCHITECTURES.get(file.architecture)
    if found is None:
        raise CheckpointError(
            f"GGUF files of architecture {file.architecture!r} are not supported",
            where=file.path,
            hint=f"known: {', '.join(ARCHITECTURES)}; or pass the folder of a Hugging Face checkpoint",
        )
    return found


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return what config.json would say.

    Raises:
        CheckpointError: If the architecture is not known, or the file lacks a size or asks for what is not read.
    """
    found = architecture_of(file)
    _check_rope(file)
    heads = _size(file, "attention.head_count")
    config: dict[str, Any] = {
        "model_type": found.model_type,
        "architectures": [found.class_name],
        "hidden_size": _size(file, "embedding_length"),
        "num_hidden_layers": _size(file, "block_count"),
        "intermediate_size": _size(file, "feed_forward_length"),
        "max_position_embeddings": _size(file, "context_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": _size(file, "attention.head_count_kv", heads),
        "rms_norm_eps": _number(file, "attention.layer_norm_rms_epsilon", 1e-6),
        "rope_theta": _number(file, "rope.freq_base", found.theta),
        "vocab_size": _vocab_size(file),
        "tie_word_embeddings": _HEAD not in file.tensors,
        **_token_ids(file),
    }
    widest = _size(file, "rope.dimension_count", max(1, config["hidden_size"] // heads))
    config["head_dim"] = _size(file, "attention.key_length", widest)
    if ROPE_FACTORS in file.tensors:
        config["rope_parameters"] = _llama3(file, config)
    if found.model_type == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if found.model_type == "gemma3_text":
        config |= _gemma(file, config)
    return config


def _gemma(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    is_largest = config["num_hidden_layers"] == _GEMMA_27B_BLOCKS
    widest = config["hidden_size"] // config["num_attention_heads"]
    return {
        "sliding_window": _size(file, "attention.sliding_window"),
        "query_pre_attn_scalar": widest if is_largest else config["head_dim"],
        "final_logit_softcapping": _value(file, "final_logit_softcapping", None),
    }


def _check_rope(file: GgufFile) -> None:
    """Refuse positions that are stretched: what they compute to would be wrong without a word."""
    kind = _value(file, "rope.scaling.type", _NO_SCALING)
    if kind != _NO_SCALING:
        raise _unknown_scaling(file, str(kind))


def _unknown_scaling(file: GgufFile, kind: str) -> CheckpointError:
    return CheckpointError(
        f"the file scales its positions ({kind}), which is not supported in GGUF files",
        where=file.path,
        hint="pass the folder of the Hugging Face checkpoint",
    )


def _llama3(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scaling by frequency whose factors the file holds: Llama 3.1's, 3.2's and 3.3's differ by the largest.

    Raises:
        CheckpointError: If no such scaling makes these factors.
    """
    stored = file.blocks(file.tensors[ROPE_FACTORS]).view("<f4").reshape(-1).astype(np.float64)
    parameters = {**_LLAMA3, "factor": float(stored.max(initial=1.0)), "rope_theta": config["rope_theta"]}
    powers = np.arange(0, config["head_dim"], 2) / config["head_dim"]
    turns = _LLAMA3["original_max_position_embeddings"] / (2 * math.pi * config["rope_theta"] ** powers)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / parameters["factor"] + smooth)
    if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-4):
        raise _unknown_scaling(file, "by frequency, other than Llama 3's")
    return {"rope_type": "llama3", **parameters}


def _token_ids(file: GgufFile) -> dict[str, int]:
    names = {"bos": "bos", "eos": "eos", "padding": "pad"}
    found = {name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key, name in names.items()}
    return {f"{name}_token_id": value for name, value in found.items() if isinstance(value, int)}


def _vocab_size(file: GgufFile) -> int:
    if _EMBEDDING not in file.tensors:
        raise CheckpointError(f"the file has no {_EMBEDDING}: it is not a whole model", where=file.path)
    return file.tensors[_EMBEDDING].shape[0]


def _size(file: GgufFile, key: str, default: int | None = None) -> int:
    value = _value(file, key, default)
    if not isinstance(value, int) or value < 1:
        raise CheckpointError(f"the file has {file.architecture}.{key} = {value!r}", where=file.path)
    return value


def _number(file: GgufFile, key: str, default: float) -> float:
    value = _value(file, key, default)
    if not isinstance(value, int | float):
        raise CheckpointError(f"the file has {file.architecture}.{key} = {value!r}", where=file.path)
    return float(value)


def _value(file: GgufFile, key: str, default: Any) -> Any:
    return file.metadata.get(f"{file.architecture}.{key}", default)
