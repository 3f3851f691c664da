"""Formulas of narrow weights: stored integers, scales and zero points to f32.

Each takes the tensors of one linear layer by their names, and returns its weight f32[O, D].

Letters: O outputs, D inputs, G groups of inputs, b bits of a value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor

Parts = Mapping[str, Tensor]

_WORD_BITS = 32
# Place of each value of a word among eight columns (WQLinear_GEMM.from_linear of AutoAWQ packs in this order).
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_STATE = "weight.quant_state.bitsandbytes__"
_INT8_STEPS = 127


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Return the values of a stream of bits along the first axis, lowest bits first: i32[32 n / b, C].

    Args:
        words: i32[n, C]; values of 3, 5, 6 or 7 bits reach from one word into the next.
        bits: b.
    """
    num_words, columns = words.shape
    if num_words % bits and _WORD_BITS % bits:
        raise ValueError(f"{num_words} words hold no whole number of values of {bits} bits")
    per_block = bits if _WORD_BITS % bits else 1
    blocks = words.reshape(-1, per_block, columns).to(torch.int64) & 0xFFFFFFFF
    values = []
    for place in range(0, _WORD_BITS * per_block, bits):
        word, shift = divmod(place, _WORD_BITS)
        value = blocks[:, word] >> shift
        if shift + bits > _WORD_BITS:
            value = value | (blocks[:, word + 1] << (_WORD_BITS - shift))
        values.append(value & ((1 << bits) - 1))
    return torch.stack(values, 1).reshape(-1, columns).to(torch.int32)


def gptq(parts: Parts, *, zero_offset: int) -> Tensor:
    """GPTQ: (q - zero) scale, packed along the inputs.

    Args:
        parts: qweight i32[D b / 32, O], qzeros i32[G, O b / 32], scales [G, O], and g_idx i32[D] where inputs are in
            groups of another order.
        zero_offset: 1 for the first version of the format, which stores zeros less one; 0 for the second.
    """
    scales = parts["scales"].to(torch.float32)
    bits = _exact(_WORD_BITS * parts["qzeros"].shape[1], scales.shape[1])
    values_DO = unpacked(parts["qweight"], bits)
    zeros_GO = (unpacked(parts["qzeros"].T, bits).T + zero_offset) & ((1 << bits) - 1)
    groups_D = parts.get("g_idx")
    if groups_D is None:
        groups_D = torch.arange(len(values_DO)) // -(-len(values_DO) // len(scales))
    groups_D = groups_D.to(torch.int64)
    return ((values_DO - zeros_GO[groups_D]) * scales[groups_D]).T.contiguous()


def awq(parts: Parts) -> Tensor:
    """AWQ of the layout GEMM: (q - zero) scale, packed along the outputs in an order of its own.

    Args:
        parts: qweight i32[D, O / 8], qzeros i32[G, O / 8], scales [G, O].
    """
    scales = parts["scales"].to(torch.float32)
    bits = _exact(_WORD_BITS * parts["qweight"].shape[1], scales.shape[1])
    if bits != 4:
        raise ValueError(f"AWQ of {bits} bits is not known")
    values_DO, zeros_GO = (_awq_columns(parts[name]) for name in ("qweight", "qzeros"))
    size = _exact(len(values_DO), len(scales))
    return ((values_DO - _repeated(zeros_GO, size)) * _repeated(scales, size)).T.contiguous()


def _awq_columns(words: Tensor) -> Tensor:
    stored = unpacked(words.T, 4).T.reshape(len(words), -1, len(_AWQ_ORDER))
    columns = torch.empty_like(stored)
    columns[:, :, list(_AWQ_ORDER)] = stored
    return columns.reshape(len(words), -1)


def bitsandbytes4(parts: Parts) -> Tensor:
    """NF4 and FP4 of bitsandbytes: a table of 16 values by blocks' largest ones, which may be quantised too.

    Args:
        parts: weight u8[O D / 2, 1], weight.absmax, weight.quant_map and the state that says the shape; where absmax is
            quantised, weight.nested_absmax and weight.nested_quant_map.
    """
    state = json.loads(bytes(next(each for name, each in parts.items() if name.startswith(_STATE)).tolist()))
    packed = parts["weight"].reshape(-1).to(torch.int64)
    codes = torch.stack([packed >> 4, packed & 15], 1).reshape(-1)
    absmax = parts["weight.absmax"]
    if "weight.nested_absmax" in parts:
        outer = parts["weight.nested_absmax"].to(torch.float32).repeat_interleave(int(state["nested_blocksize"]))
        table = parts["weight.nested_quant_map"].to(torch.float32)
        absmax = table[absmax.to(torch.int64)] * outer[: len(absmax)] + float(state["nested_offset"])
    shape = [int(size) for size in state["shape"]]
    count = torch.Size(shape).numel()
    scales = absmax.to(torch.float32).repeat_interleave(int(state["blocksize"]))[:count]
    return (parts["weight.quant_map"].to(torch.float32)[codes[:count]] * scales).reshape(shape)


def bitsandbytes8(parts: Parts) -> Tensor:
    """LLM.int8 of bitsandbytes: rows by their largest values.

    Args:
        parts: weight i8[O, D], SCB f32[O].
    """
    return parts["weight"].to(torch.float32) * parts["SCB"].to(torch.float32)[:, None] / _INT8_STEPS


def packed_integers(parts: Parts) -> Tensor:
    """Packed integers of compressed-tensors: (q - zero) scale, offset to be positive.

    Args:
        parts: weight_packed i32[O, D b / 32], weight_shape i64[2], weight_scale [O, G], and weight_zero_point
            i32[O b / 32, G] of asymmetric ones, weight_g_idx i32[D] of inputs in another order.
    """
    num_outputs, width = (int(size) for size in parts["weight_shape"])
    packed, scale = parts["weight_packed"], parts["weight_scale"].to(torch.float32)
    bits = -(-_WORD_BITS * packed.shape[1] // width)
    if bits not in (4, 8):
        raise ValueError(f"packed integers of {bits} bits are not known")
    half = 1 << (bits - 1)
    values_OD = unpacked(packed.T, bits).T[:, :width] - half
    groups_D = parts.get("weight_g_idx")
    if groups_D is None or bool((groups_D < 0).any()):
        groups_D = torch.arange(width) // _exact(width, scale.shape[1])
    groups_D = groups_D.to(torch.int64)
    if "weight_zero_point" in parts:
        zeros = unpacked(parts["weight_zero_point"], bits)[:num_outputs] - half
        values_OD = values_OD - zeros[:, groups_D]
    return values_OD * scale[:, groups_D]


def scaled(parts: Parts, block: tuple[int, int] | None = None) -> Tensor:
    """FP8 or int8 values, each with the scale of its tensor, row, group or block.

    Args:
        parts: weight [O, D]; weight_scale or weight_scale_inv of one value, [O], [O, G] or [O blocks, D blocks]; and
            weight_zero_point of the same shape.
        block: Rows and columns that share a scale; None where the shapes say it.
    """
    weight = parts["weight"].to(torch.float32)
    scale = parts.get("weight_scale", parts.get("weight_scale_inv"))
    assert scale is not None, "the layer was recognised by its scale"
    if "weight_zero_point" in parts:
        weight = weight - _over(parts["weight_zero_point"].to(torch.float32), weight.shape, block)
    return weight * _over(scale.to(torch.float32), weight.shape, block)


def _over(values: Tensor, shape: torch.Size, block: tuple[int, int] | None) -> Tensor:
    """Repeat values, one for each block, over all places of their blocks: [O, D]."""
    if values.numel() == 1:
        return values.reshape(1, 1)
    values = values.reshape(-1, 1) if values.dim() == 1 else values
    for dim, size in enumerate(shape):
        count = values.shape[dim]
        if count in (1, size):
            continue
        each = block[dim] if block is not None and -(-size // block[dim]) == count else _exact(size, count)
        values = values.repeat_interleave(each, dim).narrow(dim, 0, size)
    return values


def _repeated(values: Tensor, times: int) -> Tensor:
    return values.repeat_interleave(times, 0)


def _exact(whole: int, count: int) -> int:
    if count < 1 or whole % count:
        raise ValueError(f"{whole} is not a multiple of {count}")
    return whole // count
