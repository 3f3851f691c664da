"""Tiny models as GGUF files, as llama.cpp's converters lay them out, written with the package gguf."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prgec.core.machine.native_log import captured_stderr

# Architecture of llama.cpp by transformers' model_type.
NAMES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3", "phi3": "phi3"}
Keys = Callable[[Any], None]


def write_gguf_llama(path: Path, model: Any) -> None:
    """Write a `LlamaForCausalLM` for llama.cpp: weights in f32, a vocabulary without meaning."""
    write_gguf(path, model, lambda writer: _add_vocabulary(writer, model.config.vocab_size))


def write_gguf(path: Path, model: Any, add_keys: Keys, kinds: Mapping[str, str] | None = None) -> Path:
    """Write a causal language model.

    Args:
        path: The file.
        model: Model of transformers, f32.
        add_keys: Adds the tokenizer, and what else a test wants.
        kinds: Types of single tensors, by GGUF's name; F32 for others.
    """
    import gguf

    config = model.config
    name = NAMES[config.model_type]
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
    writer = gguf.GGUFWriter(path, name)
    _add_sizes(writer, config)
    add_keys(writer)
    table = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for hf_name, tensor in model.state_dict().items():
        if config.tie_word_embeddings and hf_name.startswith("lm_head"):
            continue
        stored = table.get_name(hf_name, (".weight", ".bias"))
        array = np.ascontiguousarray(_arranged(hf_name, tensor.numpy(), config))
        kind = gguf.GGMLQuantizationType[(kinds or {}).get(stored, "F32")]
        writer.add_tensor(stored, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantize_gguf(source: Path, target: Path, kind: str) -> None:
    """Write a file again with every matrix as `Q4_0` or `Q8_0`.

    Raises:
        RuntimeError: If llama.cpp refuses.
    """
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.pure = True
    with captured_stderr():
        failed = llama_cpp.llama_model_quantize(bytes(source), bytes(target), params)
    if failed:
        raise RuntimeError(f"llama.cpp cannot write {target}")


def _add_sizes(writer: Any, config: Any) -> None:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    theta = config.rope_parameters
    theta = theta.get("full_attention", theta)["rope_theta"]
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(theta)
    if config.model_type == "llama":
        writer.add_rope_dimension_count(head)
    if config.model_type in ("qwen3", "gemma3_text"):
        writer.add_key_length(head)
        writer.add_value_length(head)
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
    if config.model_type != "gemma3_text":
        writer.add_vocab_size(config.vocab_size)


def llama3_factors(config: Any) -> np.ndarray:
    """Return what llama.cpp's converter stores of a scaling by frequency, one after the other as it does."""
    scaling = config.rope_parameters
    low, high, context = (
        scaling[name] for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    factors = []
    for place in range(0, config.head_dim, 2):
        wave = 2 * math.pi * scaling["rope_theta"] ** (place / config.head_dim)
        if wave < context / high:
            factors.append(1.0)
        elif wave > context / low:
            factors.append(scaling["factor"])
        else:
            smooth = (context / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def _arranged(name: str, array: np.ndarray, config: Any) -> np.ndarray:
    """Do to a tensor what the converter of its architecture does."""
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return array + np.float32(1.0)
    for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
        if config.model_type == "llama" and part in name:
            return _interleave(array, heads)
    return array


def _add_vocabulary(writer: Any, size: int) -> None:
    special = ["<unk>", "<s>", "</s>"]
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [f"w{i}" for i in range(size - len(tokens))]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (size - 259)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * size)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def add_sentencepiece(writer: Any, model: bytes) -> None:
    """Add the vocabulary of a sentencepiece model, as llama.cpp's converter reads it."""
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor()
    pieces.LoadFromSerializedProto(model)
    ids = range(pieces.GetPieceSize())
    kind_of = [(pieces.IsUnknown, 2), (pieces.IsControl, 3), (pieces.IsByte, 6)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([pieces.IdToPiece(i) for i in ids])
    writer.add_token_scores([pieces.GetScore(i) for i in ids])
    writer.add_token_types([next((kind for is_kind, kind in kind_of if is_kind(i)), 1) for i in ids])
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    writer.add_unk_token_id(pieces.unk_id())


def add_merges(writer: Any, document: Mapping[str, Any], rule: str) -> None:
    """Add a byte-level tokenizer out of a tokenizer.json, its text split by a rule of llama.cpp's."""
    vocabulary = document["model"]["vocab"]
    special = {each["content"] for each in document["added_tokens"]}
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in document["model"]["merges"]])
    writer.add_eos_token_id(vocabulary["</s>"])


def _interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row 2i of a head is row i of its first half, row 2i + 1 row i of its second."""
    rows = []
    size = weight.shape[0] // heads
    for head in range(heads):
        for i in range(size // 2):
            rows += [head * size + i, head * size + size // 2 + i]
    return weight[rows]
