"""An adapter as llama.cpp loads it: a GGUF file with `<tensor>.lora_a` f32[r, D] and `<tensor>.lora_b` f32[O, r].

Names are those of the base model's tensors in GGUF (`blk.0.attn_q.weight`), from gguf's own table. For models of
llama.cpp's Llama family the rows of q and k are stored interleaved (its RoPE pairs neighbours, Hugging Face's pairs
halves), so B's are permuted in the same way. Layout after llama.cpp's convert_lora_to_gguf.py.

Letters: r rank, D and O widths of a layer's input and output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prgec.core.contract.arrays import FloatArray
from prgec.core.contract.names import FROZEN_SUFFIX, STATE_SUFFIX
from prgec.core.formats.peft import PeftAdapter
from prgec.core.machine.extras import extra_hint
from prgec.errors import BackendError, UsageError

# Hugging Face model_type -> (llama.cpp's architecture, whether q and k are permuted). Models whose weights llama.cpp
# rearranges in other ways (GPT-2, GPT-NeoX) are not here.
ARCHITECTURES: dict[str, tuple[str, bool]] = {
    "llama": ("LLAMA", True),
    "mistral": ("LLAMA", True),
    "granite": ("GRANITE", True),
    "smollm3": ("SMOLLM3", True),
    "qwen2": ("QWEN2", False),
    "qwen3": ("QWEN3", False),
    "gemma2": ("GEMMA2", False),
    "gemma3_text": ("GEMMA3", False),
    "phi3": ("PHI3", False),
}
_PERMUTED = re.compile(r".*\.([qk])_proj")


def write_gguf_lora(path: Path, adapter: PeftAdapter, config: Mapping[str, Any]) -> None:
    """Write an adapter for llama.cpp.

    Args:
        path: The .gguf to write.
        adapter: A and B of every site.
        config: config.json of the base model.

    Raises:
        BackendError: If the package gguf is not installed.
        UsageError: If llama.cpp does not have the model, or a layer of it as one tensor.
    """
    try:
        import gguf
    except ImportError as error:
        raise BackendError("gguf-lora needs the package gguf", hint=extra_hint("gguf")) from error
    model_type = str(config.get("model_type"))
    if model_type not in ARCHITECTURES:
        raise UsageError(
            f"no gguf-lora for models of type {model_type}",
            hint=f"known: {', '.join(ARCHITECTURES)}; or export --format merged and convert that",
        )
    name, is_permuted = ARCHITECTURES[model_type]
    arch = getattr(gguf.MODEL_ARCH, name)
    table = gguf.get_tensor_name_map(arch, int(config["num_hidden_layers"]))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        writer = gguf.GGUFWriter(temporary, gguf.MODEL_ARCH_NAMES[arch])
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, adapter.alpha)
        for site in adapter.sites:
            target = table.get_name(f"{site}.weight", try_suffixes=(".weight",))
            if target is None:
                raise UsageError(f"llama.cpp has no tensor for {site}")
            b_OR = np.ascontiguousarray(adapter.tensors[site + STATE_SUFFIX].T)
            if is_permuted and (match := _PERMUTED.fullmatch(site)):
                b_OR = interleaved(b_OR, _num_heads(config, match[1]))
            writer.add_tensor(f"{target}.lora_a", np.ascontiguousarray(adapter.tensors[site + FROZEN_SUFFIX]))
            writer.add_tensor(f"{target}.lora_b", b_OR)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def interleaved(rows: FloatArray, num_heads: int) -> FloatArray:
    """Reorder the rows of each head from (first half, second half) to pairs: [O, r] -> [O, r]."""
    out, width = rows.shape
    halves = rows.reshape(num_heads, 2, out // num_heads // 2, width)
    result: FloatArray = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(out, width))
    return result


def _num_heads(config: Mapping[str, Any], projection: str) -> int:
    heads = config["num_attention_heads"]
    return int(heads if projection == "q" else config.get("num_key_value_heads") or heads)
