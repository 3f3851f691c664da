"""Checkpoints whose weights are narrow already: GPTQ, AWQ, bitsandbytes, compressed-tensors, FP8 and torchao, as f32.

Their layers are recognised by the tensors that they have, so that layers left out of the quantisation are read as they
are. Nothing of the packages that wrote them is needed, torchao apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from prgec.compiler.frontend import narrow
from prgec.compiler.frontend.checkpoint import QUANTIZATION_CONFIG, Checkpoint
from prgec.errors import CheckpointError

_METHODS = ("gptq", "awq", "bitsandbytes", "compressed-tensors", "fp8", "fbgemm_fp8")
# Its tensors are classes of its own, which transformers makes of a folder.
_TORCHAO = "torchao"
_HINT = f"known: {', '.join((*_METHODS, _TORCHAO))}; or take the checkpoint that it was made from"
# Names of a layer's tensors after the layer's own; longer ones first.
_PARTS = (
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4",
    "weight.quant_state.bitsandbytes__fp4",
    "weight",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "SCB",
    "weight_format",
    "weight_packed",
    "weight_shape",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_g_idx",
    "weight_global_scale",
)
# Scales of activations and caches: the program computes these in f32, or rounds them by itself.
_LEFT_OUT = (
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "activation_scale",
    "activation_scale_ub",
    "k_scale",
    "v_scale",
    "q_scale",
)
# Models whose linear layers lie the other way round (transformers' Conv1D).
_TRANSPOSED_TYPES = ("gpt2", "openai-gpt")


def quantization_of(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return what config.json says of narrow weights; None where they have full width."""
    found = checkpoint.config.get(QUANTIZATION_CONFIG)
    return found if isinstance(found, dict) else None


def is_torchao(checkpoint: Checkpoint) -> bool:
    """Whether the weights are torchao's tensors, which transformers reads by itself."""
    return (quantization_of(checkpoint) or {}).get("quant_method") == _TORCHAO


def widen(model: nn.Module) -> None:
    """Make f32 weights of torchao's tensors."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and type(parameter.data) is not Tensor and hasattr(parameter, "dequantize"):
                module._parameters[name] = nn.Parameter(parameter.dequantize().to(torch.float32), requires_grad=False)
    config: Any = model.config
    if hasattr(config, QUANTIZATION_CONFIG):
        delattr(config, QUANTIZATION_CONFIG)


def describe(quantization: Mapping[str, Any]) -> str:
    """Return the method and the bits, for people."""
    bits = quantization.get("bits") or (4 if quantization.get("load_in_4bit") else None)
    return f"{quantization.get('quant_method')}, {bits} bits" if bits else str(quantization.get("quant_method"))


def read_quantized(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return all weights in f32, by the names that the model has for them.

    Raises:
        CheckpointError: If the method is not known, or tensors of a layer are missing or do not fit each other.
    """
    quantization = quantization_of(checkpoint) or {}
    _check(quantization, checkpoint)
    weights: dict[str, Tensor] = {}
    for stem, parts in _layers(checkpoint.shards):
        try:
            for name, tensor in _unpacked(parts, quantization).items():
                weights[f"{stem}.{name}" if stem else name] = tensor
        except (ValueError, KeyError, IndexError, RuntimeError, StopIteration, TypeError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
            raise CheckpointError(
                f"the quantised layer {stem} is damaged: {reason[:160]}", where=checkpoint.path
            ) from error
    return weights


def _check(quantization: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    method = str(quantization.get("quant_method"))
    if method not in _METHODS:
        raise CheckpointError(f"weights quantised by {method!r} are not read", where=checkpoint.path, hint=_HINT)
    if method == "awq" and quantization.get("version", "gemm") != "gemm":
        raise CheckpointError(
            f"AWQ weights of the layout {quantization['version']!r} are not read; gemm is", where=checkpoint.path
        )
    if checkpoint.config.get("model_type") in _TRANSPOSED_TYPES:
        raise CheckpointError(
            f"quantised weights of {checkpoint.config['model_type']} lie the other way round, and are not read",
            where=checkpoint.path,
            hint="take the checkpoint that it was made from",
        )


def _layers(shards: tuple[Path, ...]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield the tensors of each layer, whichever files they are in."""
    places: dict[str, dict[str, tuple[Path, str]]] = defaultdict(dict)
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                stem, part = _split(name)
                places[stem][part] = (shard, name)
    for stem, parts in places.items():
        yield stem, {part: _tensor(shard, name) for part, (shard, name) in parts.items() if part not in _LEFT_OUT}


def _tensor(shard: Path, name: str) -> Tensor:
    with safe_open(shard, framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor


def _split(name: str) -> tuple[str, str]:
    """Return the layer of a tensor, and its name there."""
    for part in _PARTS:
        if name.endswith(f".{part}"):
            return name.removesuffix(f".{part}"), part
    stem, _, part = name.rpartition(".")
    return stem, part


def _unpacked(parts: dict[str, Tensor], quantization: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the weight in f32 and the other tensors of a layer that its model has."""
    rest = {name: tensor.to(torch.float32) for name, tensor in parts.items() if name not in _PARTS}
    weight = _weight(parts, quantization)
    return rest if weight is None else {"weight": weight, **rest}


def _weight(parts: dict[str, Tensor], quantization: Mapping[str, Any]) -> Tensor | None:
    if "qweight" in parts:
        if quantization["quant_method"] == "awq":
            return narrow.awq(parts)
        # The second version of the format stores zeros as they are.
        is_second = quantization.get("checkpoint_format") == "gptq_v2"
        return narrow.gptq(parts, zero_offset=0 if is_second else 1)
    if "weight_packed" in parts:
        if parts["weight_packed"].dtype != torch.int32:
            raise ValueError("packed floats (NVFP4, MXFP4) are not read")
        return narrow.packed_integers(parts)
    if any(name.startswith("weight.quant_state") for name in parts):
        return narrow.bitsandbytes4(parts)
    if "SCB" in parts:
        return narrow.bitsandbytes8(parts)
    if "weight_scale" in parts or "weight_scale_inv" in parts:
        return narrow.scaled(parts, _block_of(quantization))
    weight = parts.get("weight")
    if weight is not None and not weight.is_floating_point():
        raise ValueError(f"its weight is {weight.dtype} and has no scale")
    return None if weight is None else weight.to(torch.float32)


def _block_of(quantization: Mapping[str, Any]) -> tuple[int, int] | None:
    groups = quantization.get("config_groups") or {}
    found = quantization.get("weight_block_size") or next(
        (
            block
            for group in groups.values()
            if (block := (group.get("weights") or {}).get("block_structure")) is not None
        ),
        None,
    )
    return (int(found[0]), int(found[1])) if isinstance(found, list | tuple) and len(found) == 2 else None
