"""Quantise the frozen linear layers: int8 activations a token, int8 or grouped int4 weights.

Before:
    %0: f32[N, T, O] = aten.linear(%x, @site.weight)
After:
    %0 = torchao.choose_qparams_affine(%x, ASYMMETRIC, [1, 1, D], i8, ...)
    %1: f32[N, T] = getitem(%0, 0)
    %2: i8[N, T] = getitem(%0, 1)
    %3: i8[N, T, D] = torchao.quantize_affine(%x, [1, 1, D], %1, %2, i8, -128, 127)
    %4: f32[N, T, D] = torchao.dequantize_affine(%3, [1, 1, D], %1, %2, i8, -128, 127)
    %5: f32[O, D] = torchao.dequantize_affine(@site.weight_qdata, [1, G], @site.weight_scale, ...)
    %6: f32[N, T, O] = aten.linear(%4, %5)

The LoRA branch keeps reading the unquantised %x; A, B and the loss stay f32. Layers that share an input share its
quantisation.

Requires: torchao. Ensures: nothing (a layer whose width is no multiple of the group keeps f32, with a reason).
Numerics: CHANGES (this is the quantisation error; docs/quantization.md measures what it does to g).
Why: integer products are 2.5 times as fast on a CPU with dot-product instructions, and weights shrink 4 to 7 times.
XNNPACK recognises this pattern, and torchao draws scales the way its users know.
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
    """

    bits: int
    minimum: int
    maximum: int
    is_grouped: bool


SCHEMES: dict[str, Scheme] = {
    "8da8w": Scheme(8, -128, 127, is_grouped=False),
    "8da4w": Scheme(4, -8, 7, is_grouped=True),
}


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
                self._inputs[source] = self._quantized_input(source)
        with self._rewriter.before(node):
            weight = self._quantized_weight(name, self._program.attribute(weight))
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

    def _quantized_weight(self, name: str, weight: torch.Tensor) -> Node:
        scheme = self._scheme
        block = [1, self._group if scheme.is_grouped else weight.shape[1]]
        qdata, scale, zero = quantized(weight, scheme, block)
        constant = self._rewriter.constant
        parts = [constant(f"{name}.weight_{part}", value)
                 for part, value in (("qdata", qdata), ("scale", scale), ("zero_point", zero))]  # fmt: skip
        dequantize = torch.ops.torchao.dequantize_affine.default
        return self._rewriter.call(
            dequantize, parts[0], block, parts[1], parts[2], torch.int8, scheme.minimum, scheme.maximum
        )


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
