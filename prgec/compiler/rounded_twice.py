"""Checkpoints whose weights were narrow already, and what it costs to round them once more."""

from __future__ import annotations

import logging

from torch import Tensor, nn

from prgec.compiler.frontend.checkpoint import Checkpoint
from prgec.compiler.frontend.quantized import describe, quantization_of
from prgec.compiler.options import CompileOptions
from prgec.core.formats.gguf_file import BLOCKS, read_gguf
from prgec.passes.weights import SCHEMES, Scheme, quantized, rounded

logger = logging.getLogger(__name__)

# Layers that are measured, at equal distances.
_SAMPLES = 8
_PLAIN = ("F32", "F16", "BF16")


def warn_of_rounding(checkpoint: Checkpoint, model: nn.Module, options: CompileOptions) -> None:
    """Say how a checkpoint's weights are stored where that is narrow, and how far the program's scheme moves them.

    The distance is the root mean square over some layers, rounded to the nearest, over that of the weights.
    """
    stored = _stored(checkpoint)
    if not stored:
        return
    scheme, cost = SCHEMES.get(options.quantize), ""
    layers = [each.weight for each in model.modules() if isinstance(each, nn.Linear)]
    if scheme is not None and layers:
        moved = 100 * _moved(layers, scheme, options.group_size)
        cost = f"; {options.quantize} rounds them once more, which moves them by {moved:.1f} %"
    logger.warning("the checkpoint's weights are quantised (%s) and read as f32%s", stored, cost)


def _stored(checkpoint: Checkpoint) -> str:
    if not checkpoint.is_gguf:
        quantization = quantization_of(checkpoint)
        return describe(quantization) if quantization is not None else ""
    kinds = {BLOCKS[tensor.kind][0] for tensor in read_gguf(checkpoint.path).tensors.values()}
    return ", ".join(sorted(kinds - set(_PLAIN)))


def _moved(layers: list[Tensor], scheme: Scheme, group: int) -> float:
    error = size = 0.0
    for weight in layers[:: -(-len(layers) // _SAMPLES)]:
        width = weight.shape[1]
        block = group if scheme.is_grouped else width
        if width % block:
            continue
        values, scale, _ = quantized(weight, scheme, (1, block)) if scheme.quantizes_input else rounded(weight, scheme)
        spread = scale.reshape(len(values), -1).repeat_interleave(block, 1)
        error += float((values * spread - weight).square().sum())
        size += float(weight.square().sum())
    return (error / size) ** 0.5 if size else 0.0
