"""Quantise the frozen linear layers: int8 or int4 weights, with int8 activations a token or without.

Before:
    %0: f32[N, T, O] = aten.linear(%x, @site.weight)
After (8da8w, 8da4w):
    %0 = torchao.choose_qparams_affine(%x, ASYMMETRIC, [1, 1, D], i8, ...)
    %1: f32[N, T] = getitem(%0, 0)
    %2: i8[N, T] = getitem(%0, 1)
    %3: i8[N, T, D] = torchao.quantize_affine(%x, [1, 1, D], %1, %2, i8, -128, 127)
    %4: f32[N, T, D] = torchao.dequantize_affine(%3, [1, 1, D], %1, %2, i8, -128, 127)
    %5: f32[O, D] = torchao.dequantize_affine(@site.weight_qdata, [1, G], @site.weight_scale, ...)
    %6: f32[N, T, O] = aten.linear(%4, %5)
After (w8a16, w4a16):
    %0: f32[O, D] = quantized_decomposed.dequantize_per_channel(@site.weight_qdata, @site.weight_scale, ...)
    %1: f32[N, T, O] = aten.linear(%x, %0)

The LoRA branch keeps reading the unquantised %x; A, B and the loss stay f32. Layers that share an input share its
quantisation. Weights of w4a16 have one scale an output, so the scale is searched for: the one with the least squared
error among fractions of the largest weight.

Requires: torchao. Ensures: nothing (a layer whose width is no multiple of the group keeps f32, with a reason).
Numerics: CHANGES (this is the quantisation error; docs/quantization.md measures what it does to g).
Why: integer products are 2.5 times as fast on a CPU with dot-product instructions, and weights shrink 4 to 7 times.
XNNPACK recognises the first pattern, and torchao draws scales the way its users know. The HTP multiplies fp16 with int8
or int4 weights as they are (the second pattern), one scale an output; it has no fp16 product with grouped scales.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import CHANGES, Pass, PassResult, Refusal, Tier
from prgec.passes.inject_lora_fa import site_name
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import shape_of

aten = torch.ops.aten


@dataclass(frozen=True)
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
    "8da8w": Scheme(8, -128, 127, is_grouped=False),
    "8da4w": Scheme(4, -8, 7, is_grouped=True),
    "w8a16": Scheme(8, -127, 127, is_grouped=False, quantizes_input=False),
    "w4a16": Scheme(4, -7, 7, is_grouped=False, quantizes_input=False),
}
# Scales tried for 4-bit weights, as fractions of the one that clips nothing.
_FRACTIONS = tuple(1.0 - 0.05 * step for step in range(12))


@dataclass(frozen=True)
class QuantizeBase(Pass):
    """Quantise every frozen linear layer, LM head included.

    Attributes:
        scheme: Row of `SCHEMES`, or `none`.
        group: Inputs that share a scale in grouped schemes.
    """

    name: ClassVar[str] = "quantize-base"
    tier: ClassVar[Tier] = CHANGES
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa", "select-label-tokens"})

    scheme: str = "none"
    group: int = 32

    def requires(self, program: GraphProgram) -> Sequence[str]:
        """The scheme exists and groups have a size."""
        del program
        reasons = []
        if self.scheme != "none" and self.scheme not in SCHEMES:
            reasons.append(f"scheme is {self.scheme!r}; expected none, {', '.join(SCHEMES)}")
        if self.group < 1:
            reasons.append(f"group is {self.group}; expected at least 1")
        return reasons

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every linear whose weight comes from the checkpoint."""
        if self.scheme == "none":
            return PassResult(program, False)
        import torchao.quantization.pt2e.quantizer  # noqa: F401 - registers torch.ops.quantized_decomposed
        import torchao.quantization.quant_primitives  # noqa: F401 - registers torch.ops.torchao

        builder = _Builder(program, Rewriter(program, self.name), SCHEMES[self.scheme], self.group)
        hits, refusals = 0, []
        for node in program.calls(aten.linear.default):
            name = site_name(node)
            if not name:
                continue
            reason = self._why_not(node)
            if reason:
                refusals.append(Refusal(name, reason))
                continue
            builder.quantize(node, name)
            hits += 1
        return PassResult(program, hits > 0, hits, tuple(refusals))

    def _why_not(self, node: Node) -> str:
        weight = node.args[1]
        assert isinstance(weight, Node)
        width = int(shape_of(weight)[1])
        if weight.meta["val"].dtype != torch.float32:
            return f"its weight is {weight.meta['val'].dtype}, expected f32"
        if SCHEMES[self.scheme].is_grouped and width % self.group:
            return f"its width {width} is not a multiple of group={self.group}"
        return ""


class _Builder:
    """Builds the pattern; quantised inputs and weights are shared by the layers that read them."""

    def __init__(self, program: GraphProgram, rewriter: Rewriter, scheme: Scheme, group: int) -> None:
        self._program = program
        self._rewriter = rewriter
        self._scheme = scheme
        self._group = group
        self._inputs: dict[Node, Node] = {}

    def quantize(self, node: Node, name: str) -> None:
        """Quantise one layer."""
        source, weight, *bias = node.args
        assert isinstance(source, Node) and isinstance(weight, Node)
        if source not in self._inputs:
            with self._rewriter.before(node):
                self._inputs[source] = self._quantized_input(source) if self._scheme.quantizes_input else source
        with self._rewriter.before(node):
            store = self._grouped_weight if self._scheme.quantizes_input else self._weight_by_output
            weight = store(name, self._program.attribute(weight))
            linear = self._rewriter.call(aten.linear.default, self._inputs[source], weight, *bias)
        self._rewriter.replace(node, linear)

    def _quantized_input(self, source: Node) -> Node:
        ao, call = torch.ops.torchao, self._rewriter.call
        *rows, width = shape_of(source)
        block = [1] * len(rows) + [int(width)]
        limits = (torch.int8, -128, 127)
        params = call(ao.choose_qparams_affine.default, source, "ASYMMETRIC", block, *limits, None, None, torch.int8)
        scale, zero = (call(operator.getitem, params, index) for index in range(2))
        values = call(ao.quantize_affine.default, source, block, scale, zero, *limits)
        return call(ao.dequantize_affine.default, values, block, scale, zero, *limits)

    def _grouped_weight(self, name: str, weight: torch.Tensor) -> Node:
        scheme = self._scheme
        block = [1, self._group if scheme.is_grouped else weight.shape[1]]
        qdata, scale, zero = self._stored(name, quantized(weight, scheme, block))
        dequantize = torch.ops.torchao.dequantize_affine.default
        return self._rewriter.call(dequantize, qdata, block, scale, zero, torch.int8, scheme.minimum, scheme.maximum)

    def _weight_by_output(self, name: str, weight: torch.Tensor) -> Node:
        scheme = self._scheme
        qdata, scale, zero = self._stored(name, rounded(weight, scheme))
        dequantize = torch.ops.quantized_decomposed.dequantize_per_channel.default
        return self._rewriter.call(dequantize, qdata, scale, zero, 0, scheme.minimum, scheme.maximum, torch.int8)

    def _stored(self, name: str, parts: Sequence[torch.Tensor]) -> list[Node]:
        names = (f"{name}.weight_{part}" for part in ("qdata", "scale", "zero_point"))
        return [self._rewriter.constant(each, value) for each, value in zip(names, parts, strict=True)]


def quantized(
    weight: torch.Tensor, scheme: Scheme, block: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return values i8[O, D], scales f32 and zero points i8, one a block; torchao's symmetric rounding."""
    from torchao.quantization import IntxUnpackedToInt8Tensor
    from torchao.quantization.quant_primitives import MappingType

    with torch.no_grad():
        packed = IntxUnpackedToInt8Tensor.from_hp(
            weight.detach(), tuple(block), getattr(torch, f"int{scheme.bits}"), mapping_type=MappingType.SYMMETRIC
        )
    return packed.qdata, packed.scale.to(torch.float32), packed.zero_point.to(torch.int8)


def rounded(weight: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return values i8[O, D], scales f32[O] and zero points i64[O], all 0.

    Eight bits clip nothing. Of four, outliers would take most: each output gets the scale of least squared error.
    """
    weight_OD = weight.detach().to(torch.float32)
    # A row of zeros has no scale of its own; any serves.
    widest_O = weight_OD.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / scheme.maximum
    best_O, scale_O = torch.full_like(widest_O, torch.inf), widest_O
    for fraction in _FRACTIONS if scheme.bits < 8 else (1.0,):
        tried_O = widest_O * fraction
        error_O = (_values(weight_OD, tried_O, scheme) * tried_O[:, None] - weight_OD).square().sum(dim=1)
        is_better = error_O < best_O
        best_O, scale_O = torch.where(is_better, error_O, best_O), torch.where(is_better, tried_O, scale_O)
    zero_O = torch.zeros(len(scale_O), dtype=torch.int64)
    return _values(weight_OD, scale_O, scheme).to(torch.int8), scale_O, zero_O


def _values(weight_OD: torch.Tensor, scale_O: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    return (weight_OD / scale_O[:, None]).round().clamp(scheme.minimum, scheme.maximum)
