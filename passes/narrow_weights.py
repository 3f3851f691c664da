"""Store the frozen weights in 16, 8 or 4 bits and multiply in 16: the way GPUs like it.

Before:
    %0: f32[N, T, O] = aten.linear(%x, @site.weight)
After (bits=16):
    %0: bf16[N, T, D] = aten._to_copy(%x, dtype=bf16)
    %1: bf16[N, T, O] = aten.linear(%0, @site.weight_bf16)
    %2: f32[N, T, O] = aten._to_copy(%1, dtype=f32)
After (bits=8; with bits=4 two values share a byte and are taken apart first):
    %1: bf16[O, D] = aten._to_copy(@site.weight_qdata, dtype=bf16)
    %2: bf16[O, D / G, G] = aten.mul(aten.view(%1, [O, D / G, G]), @site.weight_scale)
    %3: bf16[O, D] = aten.view(%2, [O, D])

Everything between two linear layers stays f32, and so do A, B, their products and the loss; layers that share an
input share its cast. An embedding keeps its rows in 16 bits.

Requires: nothing. Ensures: nothing (a layer whose width is not a multiple of the group stays at 16 bits, with a
reason).
Numerics: CHANGES (weights and activations of the frozen layers are rounded).
Why: tensor cores want 16-bit operands, and a step reads each weight once for all rows. For more than a few rows
ExecuTorch's own CUDA schemes trace to this same dequantisation before a matrix product
(executorch/backends/cuda/quantize_op_dispatch); the compiler fuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import CHANGES, Pass, PassResult, Role, Tier, rewrite_matches
from prgec.passes.program import GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import dtype_of, shape_of
from prgec.passes.weights import NIBBLE_ZERO, SCHEMES, layer_name, packed_nibbles, quantized

aten = torch.ops.aten

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
_SCHEMES = {8: SCHEMES["8da8w"], 4: SCHEMES["8da4w"]}


@dataclass(frozen=True)
class NarrowWeights(Pass):
    """Store frozen weights narrow.

    Attributes:
        dtype: `bf16` or `f16`, in which frozen layers multiply.
        bits: 16, 8 or 4 bits a weight.
        group: Inputs that share a scale where bits are fewer than 16.
    """

    name: ClassVar[str] = "narrow-weights"
    tier: ClassVar[Tier] = CHANGES
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa", "select-label-tokens"})
    is_legality: ClassVar[bool] = True

    dtype: str = "bf16"
    bits: int = 16
    group: int = 128

    def requires(self, program: GraphProgram) -> Sequence[str]:
        """The format is one of the known ones."""
        del program
        reasons = []
        if self.dtype not in DTYPES:
            reasons.append(f"dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}")
        if self.bits not in (16, *_SCHEMES):
            reasons.append(f"bits is {self.bits}; expected 16, 8 or 4")
        if self.group < 2 or self.group % 2:
            reasons.append(f"group is {self.group}; expected an even number")
        return reasons

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every linear and every embedding that reads a weight of the checkpoint."""
        narrower = _Narrower(program, Rewriter(program, self.name), self)
        linears = rewrite_matches(program, map(match_linear, program.calls(aten.linear.default)), narrower.linear)
        lookups = rewrite_matches(program, map(match_lookup, program.calls(aten.embedding.default)), narrower.embedding)
        hits = linears.hits + lookups.hits
        return PassResult(program, hits > 0, hits, (*linears.refusals, *narrower.too_wide))


def match_linear(node: Node) -> Node | Refusal | None:
    """Return a layer to rewrite, or why it stays; None for products without a weight of the checkpoint."""
    name = layer_name(node)
    if name and dtype_of(node) != torch.float32:
        return Refusal(name, f"it computes in {dtype_of(node)}; expected f32")
    return node if name else None


def match_lookup(node: Node) -> Node | None:
    """Return a lookup in an f32 table of the checkpoint; None for any other."""
    table = node.args[0]
    is_stored = isinstance(table, Node) and table.op == "get_attr" and dtype_of(table) == torch.float32
    return node if is_stored else None


class _Narrower:
    """Rewrites one layer at a time; casts of inputs and stored weights are shared.

    Attributes:
        too_wide: Layers that got 16 bits where fewer were requested.
    """

    def __init__(self, program: GraphProgram, rewriter: Rewriter, options: NarrowWeights) -> None:
        self._program = program
        self._rewriter = rewriter
        self._options = options
        self._dtype = DTYPES[options.dtype]
        self._inputs: dict[Node, Node] = {}
        self._stored: set[str] = set()
        self.too_wide: list[Refusal] = []

    def linear(self, node: Node) -> None:
        """Rewrite one layer."""
        name = layer_name(node)
        source, weight, *bias = node.args
        assert isinstance(source, Node) and isinstance(weight, Node)
        width = int(shape_of(weight)[1])
        fits = self._options.bits == 16 or width % self._options.group == 0
        if source not in self._inputs:
            with self._rewriter.before(node):
                self._inputs[source] = self._cast(source, self._dtype)
        with self._rewriter.before(node):
            narrow = self._quantized(name, weight) if fits and self._options.bits < 16 else self._halved(weight)
            halves = [self._halved(each) for each in bias if isinstance(each, Node)]
            product = self._rewriter.call(aten.linear.default, self._inputs[source], narrow, *halves)
            wide = self._cast(product, torch.float32)
        self._rewriter.replace(node, wide)
        if not fits:
            reason = f"its width {width} is not a multiple of group={self._options.group}; it keeps 16 bits"
            self.too_wide.append(Refusal(name, reason))

    def embedding(self, node: Node) -> None:
        """Rewrite one lookup in an f32 table."""
        table, *rest = node.args
        assert isinstance(table, Node)
        with self._rewriter.before(node):
            rows = self._rewriter.call(aten.embedding.default, self._halved(table), *rest)
            wide = self._cast(rows, torch.float32)
        self._rewriter.replace(node, wide)

    def _cast(self, node: Node, dtype: torch.dtype) -> Node:
        return self._rewriter.call(aten._to_copy.default, node, dtype=dtype)

    def _halved(self, weight: Node) -> Node:
        name = f"{weight.target}_{self._options.dtype}"
        if name in self._stored:
            return self._rewriter.read(name)
        self._stored.add(name)
        return self._rewriter.constant(name, self._program.attribute(weight).detach().to(self._dtype))

    def _quantized(self, name: str, weight: Node) -> Node:
        call, constant = self._rewriter.call, self._rewriter.constant
        out, width = (int(size) for size in shape_of(weight))
        group = self._options.group
        values, scale, _ = quantized(self._program.attribute(weight), _SCHEMES[self._options.bits], [1, group])
        scale_OG1 = scale.to(self._dtype).reshape(out, width // group, 1)
        if self._options.bits == 8:
            codes = self._cast(constant(f"{name}.weight_qdata", values), self._dtype)
        else:
            codes = self._nibbles(constant(f"{name}.weight_qdata", packed_nibbles(values, even_is_low=True)))
        grouped = call(aten.view.default, codes, [out, width // group, group])
        scaled = call(aten.mul.Tensor, grouped, constant(f"{name}.weight_scale", scale_OG1))
        return call(aten.view.default, scaled, [out, width])

    def _nibbles(self, bytes_OH: Node) -> Node:
        call = self._rewriter.call
        low = call(aten.bitwise_and.Scalar, bytes_OH, 15)
        high = call(aten.bitwise_right_shift.Tensor_Scalar, bytes_OH, 4)
        pairs = self._cast(call(aten.stack.default, [low, high], -1), self._dtype)
        return call(aten.sub.Tensor, pairs, float(NIBBLE_ZERO))
