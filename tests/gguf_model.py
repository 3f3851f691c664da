"""A tiny Llama as a GGUF file, so that llama.cpp can run it: weights in f32, a vocabulary without meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def write_gguf_llama(path: Path, model: Any) -> None:
    """Write a `LlamaForCausalLM` for llama.cpp."""
    import gguf

    config, arch = model.config, gguf.MODEL_ARCH.LLAMA
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    _add_vocabulary(writer, config.vocab_size)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name:
                array = _interleave(array, heads)
        writer.add_tensor(names.get_name(name, (".weight",)) + "", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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


def _interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row 2i of a head is row i of its first half, row 2i + 1 row i of its second."""
    rows = []
    size = weight.shape[0] // heads
    for head in range(heads):
        for i in range(size // 2):
            rows += [head * size + i, head * size + size // 2 + i]
    return weight[rows]
