"""Weights of the checkpoint: which layer reads them, and how they are rounded and stored narrow.

Letters: O outputs, D inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

_WEIGHT = ".weight"
# Ends the name of a layer whose weight is the transposed copy of another's.
TRANSPOSED = ".transposed"


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How weights are stored.

    Attributes:
        bits: Width of a value; narrow ones live in int8 tensors until a delegate packs them.
        minimum: Smallest value.
        maximum: Largest value.
        is_grouped: Whether every group of inputs has its own scale, or only every output.
        quantizes_input: Whether activations become int8 as well.
    """

    bits: int
    minimum: int
    maximum: int
    is_grouped: bool
    quantizes_input: bool = True


SCHEMES: dict[str, Scheme] = {
    "8da8w": Scheme(bits=8, minimum=-128, maximum=127, is_grouped=False),
    "8da4w": Scheme(bits=4, minimum=-8, maximum=7, is_grouped=True),
    "w8a16": Scheme(bits=8, minimum=-127, maximum=127, is_grouped=False, quantizes_input=False),
    "w4a16": Scheme(bits=4, minimum=-7, maximum=7, is_grouped=False, quantizes_input=False),
}
# Offset that turns a 4-bit value into a nibble.
NIBBLE_ZERO = 8
# Scales tried for 4-bit weights, as fractions of the one that clips nothing.
FRACTIONS = tuple(1.0 - 0.05 * step for step in range(12))
# Values that are rounded at once: what is made on the way takes several times their memory.
_STRIP_VALUES = 1 << 24


def layer_name(node: Node) -> str:
    """Module path of a linear whose weight is an attribute `<path>.weight`; empty for any other."""
    weight = node.args[1] if len(node.args) > 1 else None
    if not isinstance(weight, Node) or weight.op != "get_attr" or not str(weight.target).endswith(_WEIGHT):
        return ""
    return str(weight.target).removesuffix(_WEIGHT)


def quantized(
    weight: torch.Tensor, scheme: Scheme, block: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return values i8[O, D], scales f32 and zero points i8, one a block; torchao's symmetric rounding."""
    from torchao.quantization import IntxUnpackedToInt8Tensor
    from torchao.quantization.quant_primitives import MappingType

    def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        packed = IntxUnpackedToInt8Tensor.from_hp(
            rows, tuple(block), getattr(torch, f"int{scheme.bits}"), mapping_type=MappingType.SYMMETRIC
        )
        return packed.qdata, packed.scale.to(torch.float32), packed.zero_point.to(torch.int8)

    with torch.no_grad():
        values, scales, zeros = zip(*map(quantize, strips(weight)), strict=True)
    return torch.cat(values), torch.cat(scales), torch.cat(zeros)


def rounded(weight: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return values i8[O, D], scales f32[O] and zero points i64[O], all 0.

    Eight bits clip nothing. With four, outliers would use up most of the range: each output gets the scale of least
    squared error.
    """
    values, scales = zip(*(_rounded(rows, scheme) for rows in strips(weight)), strict=True)
    scale_O = torch.cat(scales)
    return torch.cat(values), scale_O, torch.zeros(len(scale_O), dtype=torch.int64)


def _rounded(weight: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    weight_OD = weight.to(torch.float32)
    # A row of zeros has no scale of its own; any serves.
    widest_O = weight_OD.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / scheme.maximum
    best_O, scale_O = torch.full_like(widest_O, torch.inf), widest_O
    for fraction in FRACTIONS if scheme.bits < 8 else (1.0,):
        tried_O = widest_O * fraction
        error_O = ordered_sum((_values(weight_OD, tried_O, scheme) * tried_O[:, None] - weight_OD).square().T)
        is_better = error_O < best_O
        best_O, scale_O = torch.where(is_better, error_O, best_O), torch.where(is_better, tried_O, scale_O)
    return _values(weight_OD, scale_O, scheme).to(torch.int8), scale_O


def strips(weight_OD: torch.Tensor) -> Iterator[torch.Tensor]:
    """Split a matrix by outputs, which are rounded each for itself."""
    for rows in weight_OD.detach().split(max(1, _STRIP_VALUES // weight_OD.shape[1])):
        yield rows.contiguous()


def ordered_sum(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over the first dimension, half by half: few steps, in an order that no processor changes."""
    while len(values) > 1:
        half = (len(values) + 1) // 2
        second = values[half:]
        values = torch.cat((values[: len(second)] + second, values[len(second) : half]))
    return values[0]


def packed_nibbles(values: torch.Tensor, *, even_is_low: bool) -> torch.Tensor:
    """Two values in [-8, 7] a byte, in rows of half the width: u8[O, D / 2].

    Args:
        values: i8[O, D].
        even_is_low: Whether even columns are the low halves of the bytes, or the high ones.
    """
    shifted = (values + NIBBLE_ZERO).to(torch.uint8)
    even, odd = shifted[:, ::2], shifted[:, 1::2]
    return even | (odd << 4) if even_is_low else (even << 4) | odd


def _values(weight_OD: torch.Tensor, scale_O: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    return (weight_OD / scale_O[:, None]).round().clamp(scheme.minimum, scheme.maximum)
