"""The weights of a GGUF file as transformers has them: unpacked to f32, named and arranged as in the checkpoint.

Letters: H heads, d width of a head, D input width.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prgec.compiler.frontend.gguf_config import ROPE_FACTORS, Architecture, architecture_of
from prgec.core.contract.arrays import FloatArray
from prgec.core.formats.gguf_file import BLOCKS, GgufFile, GgufTensor
from prgec.core.machine.extras import extra_hint
from prgec.errors import BackendError, CheckpointError

_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_BLOCKS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)")


def read_weights(file: GgufFile, config: dict[str, Any]) -> dict[str, Tensor]:
    """Return all weights in f32.

    Args:
        file: The file.
        config: Configuration from `config_of`.

    Raises:
        CheckpointError: If a tensor belongs to no layer of the architecture.
        BackendError: If the package gguf is missing, which unpacks blocks.
    """
    found = architecture_of(file)
    heads = {"q": int(config["num_attention_heads"]), "k": int(config["num_key_value_heads"])}
    weights = {}
    for stored, tensor in file.tensors.items():
        if stored == ROPE_FACTORS:
            continue
        name = checkpoint_name(stored, found)
        if name is None:
            raise CheckpointError(f"{stored} is not a tensor of architecture {file.architecture}", where=file.path)
        values = unpack(file, tensor)
        if found.is_permuted and (part := re.search(r"attn_([qk])\.", stored)):
            values = in_halves(values, heads[part[1]])
        if found.norm_offset and "norm" in stored:
            values = values - np.float32(found.norm_offset)
        weights[name] = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    return weights


def checkpoint_name(stored: str, found: Architecture) -> str | None:
    """Return what transformers calls a tensor; None if the architecture has none of that name."""
    stem, _, kind = stored.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{kind}"
    block = _BLOCK.fullmatch(stem)
    part = {**_OF_BLOCKS, **found.norms}.get(block[2]) if block else None
    return None if block is None or part is None else f"model.layers.{block[1]}.{part}.{kind}"


def unpack(file: GgufFile, tensor: GgufTensor) -> FloatArray:
    """Return the values of a tensor as f32.

    Raises:
        BackendError: If they lie in blocks and the package gguf is missing.
    """
    raw = file.blocks(tensor)
    name = BLOCKS[tensor.kind][0]
    if name in ("F32", "F16"):
        plain: FloatArray = raw.view("<f4" if name == "F32" else "<f2").astype(np.float32)
        return plain
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise BackendError(f"weights of type {name} need the package gguf", hint=extra_hint("gguf")) from error
    values: FloatArray = dequantize(raw, GGMLQuantizationType(tensor.kind))
    return values


def in_halves(rows: FloatArray, num_heads: int) -> FloatArray:
    """Reorder the rows of each head from pairs to (first half, second half): [H d, D] or [H d]."""
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
