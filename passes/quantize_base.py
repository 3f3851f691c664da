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
error among fractions of the largest weight. `rounding=gptq` rounds the weights of each layer so that what it computes
over some rows changes least. Transposed copies, which gradients are multiplied with, are made of the rounded weights
and go to the nearest values on their own axis, in 8 bits where the weights have 4: rounded to 4 bits a second time, on
another axis, they turn the gradient away from the loss (docs/decisions/025-transposed-copies.md).

Gradients are lifted by 1e-20 before they are quantised. Most of their rows are zeros (padding, positions that no label
looks at), XNNPACK gives a row of zeros the scale 1 (quantization.h), and what grouped weights round in f32 then is as
large as any gradient: it adds up to a bias in all layers below.

Requires: torchao; for gptq, the inputs of layers. Ensures: nothing (a layer whose width is not a multiple of the group
keeps f32, with a reason).
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

from prgec.core.contract.names import NEAREST
from prgec.passes.infra import CHANGES, Pass, PassResult, Role, Tier, rewrite_matches
from prgec.passes.program import GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from prgec.passes.roundings import Rounding, checked, find_rounding, reads_inputs, rounding_names
from prgec.passes.shapes import dtype_of, shape_of
from prgec.passes.weights import SCHEMES, TRANSPOSED, Scheme, layer_name, quantized, rounded

aten = torch.ops.aten

# Far below what counts of any gradient, and far above the smallest number that has an inverse.
_GRADIENT_OFFSET = 1e-20
# Scheme of a transposed copy, keyed by the scheme of the original weight. Unlisted schemes stay as they are.
_SCHEMES_OF_COPIES = {SCHEMES["8da4w"]: SCHEMES["8da8w"]}


@dataclass(frozen=True)
class QuantizeBase(Pass):
    """Quantise every frozen linear layer, LM head included.

    Attributes:
        scheme: Row of `SCHEMES`, or `none`.
        group: Inputs that share a scale in grouped schemes.
        rounding: `nearest`, `gptq` by `GraphProgram.activations`, or one that a package adds.
    """

    name: ClassVar[str] = "quantize-base"
    tier: ClassVar[Tier] = CHANGES
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa", "select-label-tokens"})

    scheme: str = "none"
    group: int = 32
    rounding: str = NEAREST

    def requires(self, program: GraphProgram) -> Sequence[str]:
        """The scheme and the rounding exist and groups have a size."""
        reasons = []
        if self.scheme != "none" and self.scheme not in SCHEMES:
            reasons.append(f"scheme is {self.scheme!r}; expected none, {', '.join(SCHEMES)}")
        if self.group < 1:
            reasons.append(f"group is {self.group}; expected at least 1")
        if self.rounding not in rounding_names():
            reasons.append(f"rounding is {self.rounding!r}; expected one of {', '.join(rounding_names())}")
        elif reads_inputs(self.rounding) and not program.activations:
            reasons.append(f"rounding={self.rounding} needs what layers read over some rows, and nobody looked")
        return reasons

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every linear whose weight comes from the checkpoint."""
        if self.scheme == "none":
            return PassResult(program, False)
        import torchao.quantization.pt2e.quantizer  # noqa: F401 - registers torch.ops.quantized_decomposed
        import torchao.quantization.quant_primitives  # noqa: F401 - registers torch.ops.torchao

        rounding = find_rounding(self.rounding)
        builder = _Builder(program, Rewriter(program, self.name), SCHEMES[self.scheme], self.group, rounding)
        return rewrite_matches(program, map(self.match, program.calls(aten.linear.default)), builder.quantize)

    def match(self, node: Node) -> Node | Refusal | None:
        """Return a layer to quantise, or why it stays; None for products without a weight of the checkpoint."""
        name, weight = layer_name(node), node.args[1]
        if not name:
            return None
        assert isinstance(weight, Node)
        width = int(shape_of(weight)[1])
        if dtype_of(weight) != torch.float32:
            return Refusal(name, f"its weight is {dtype_of(weight)}, expected f32")
        if _scheme_of(name, SCHEMES[self.scheme]).is_grouped and width % self.group:
            return Refusal(name, f"its width {width} is not a multiple of group={self.group}")
        return node


def _scheme_of(name: str, scheme: Scheme) -> Scheme:
    """How the weight of a layer is stored in a program of that scheme."""
    return _SCHEMES_OF_COPIES.get(scheme, scheme) if name.endswith(TRANSPOSED) else scheme


class _Builder:
    """Builds the pattern; quantised inputs and weights are shared by the layers that read them."""

    def __init__(
        self, program: GraphProgram, rewriter: Rewriter, scheme: Scheme, group: int, rounding: Rounding | None
    ) -> None:
        self._program = program
        self._rewriter = rewriter
        self._scheme = scheme
        self._group = group
        self._rounding = rounding
        self._inputs: dict[Node, Node] = {}
        self._weights: dict[str, Node] = {}

    def quantize(self, node: Node) -> None:
        """Quantise one layer."""
        name = layer_name(node)
        source, weight, *bias = node.args
        assert isinstance(source, Node) and isinstance(weight, Node)
        if source not in self._inputs:
            with self._rewriter.before(node):
                self._inputs[source] = self._input(source, name) if self._scheme.quantizes_input else source
        with self._rewriter.before(node):
            if name not in self._weights:
                store = self._grouped_weight if self._scheme.quantizes_input else self._weight_by_output
                self._weights[name] = store(name, self._as_multiplied(name, self._program.attribute(weight)))
            linear = self._rewriter.call(aten.linear.default, self._inputs[source], self._weights[name], *bias)
        self._rewriter.replace(node, linear)

    def _input(self, source: Node, name: str) -> Node:
        if name.endswith(TRANSPOSED):
            source = self._rewriter.call(aten.add.Tensor, source, _GRADIENT_OFFSET)
        return self._quantized_input(source)

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
        scheme = _scheme_of(name, self._scheme)
        block = [1, self._group if scheme.is_grouped else weight.shape[1]]
        found = self._by_rounding(name, weight, block[1])
        qdata, scale, zero = self._stored(name, found or quantized(weight, scheme, block))
        dequantize = torch.ops.torchao.dequantize_affine.default
        return self._rewriter.call(dequantize, qdata, block, scale, zero, torch.int8, scheme.minimum, scheme.maximum)

    def _weight_by_output(self, name: str, weight: torch.Tensor) -> Node:
        scheme = self._scheme
        found = self._by_rounding(name, weight, weight.shape[1])
        if found is not None:
            found = found[0], found[1].squeeze(1), found[2].squeeze(1).to(torch.int64)
        qdata, scale, zero = self._stored(name, found or rounded(weight, scheme))
        dequantize = torch.ops.quantized_decomposed.dequantize_per_channel.default
        return self._rewriter.call(dequantize, qdata, scale, zero, 0, scheme.minimum, scheme.maximum, torch.int8)

    def _by_rounding(
        self, name: str, weight: torch.Tensor, group: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """Return values, scales and zero points; None of a layer that goes to the nearest values."""
        if self._rounding is None or name.endswith(TRANSPOSED):
            return None
        inputs_nD = self._program.activations.get(name)
        if inputs_nD is not None and inputs_nD.shape[1] != weight.shape[1]:
            inputs_nD = None
        if inputs_nD is None and self._rounding.reads_inputs:
            return None
        found = self._rounding.round(weight, inputs_nD, self._scheme, group)
        values, scales = checked(self._rounding, found, weight, self._scheme, group)
        return values, scales, torch.zeros_like(scales, dtype=torch.int8)

    def _as_multiplied(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """The weight; of a transposed copy, what the forward multiplies with, so that it is rounded once more only."""
        path, is_copy = name.removesuffix(TRANSPOSED), name.endswith(TRANSPOSED)
        module = self._program.module
        if not is_copy or not hasattr(operator.attrgetter(path)(module), "weight_qdata"):
            return weight
        values, scales = (operator.attrgetter(f"{path}.weight_{part}")(module) for part in ("qdata", "scale"))
        exact: torch.Tensor = values.to(torch.float32, memory_format=torch.contiguous_format)
        # In place: a head with a large vocabulary is most of a model.
        exact.view(len(values), scales.numel() // len(values), -1).mul_(scales.reshape(len(values), -1, 1))
        return exact.t()

    def _stored(self, name: str, parts: Sequence[torch.Tensor]) -> list[Node]:
        names = (f"{name}.weight_{part}" for part in ("qdata", "scale", "zero_point"))
        return [self._rewriter.constant(each, value) for each, value in zip(names, parts, strict=True)]
