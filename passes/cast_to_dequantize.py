"""Write casts of 8-bit integers to f32 as dequantization.

Before:
    %0: f32[H, n, d] = aten.to.dtype(codes, f32)
After:
    %0: f32[H, n, d] = quantized_decomposed.dequantize_per_tensor(codes, 1.0, 0, -128, 127, i8)

Requires: nothing. Ensures: no cast from i8 to f32.
Numerics: EXACT.
Why: XNNPACK has no integers, but takes values in 8 bits that have a scale; keys and values are kept so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier, rewrite_matches
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter

aten = torch.ops.aten


@dataclass(frozen=True)
class CastToDequantize(Pass):
    """Replace casts from i8 to f32."""

    name: ClassVar[str] = "cast-to-dequantize"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every cast from i8 to f32."""
        found = map(match, program.calls(aten.to.dtype))
        return rewrite_matches(program, found, partial(_rewrite, Rewriter(program, self.name)))


@dataclass(frozen=True)
class Cast:
    """A cast of `source`, i8, to f32."""

    node: Node
    source: Node


def match(node: Node) -> Cast | None:
    """Return a cast to replace; None where other types are cast, or to others."""
    source, dtype = node.args[:2]
    assert isinstance(source, Node)
    return Cast(node, source) if source.meta["val"].dtype == torch.int8 and dtype == torch.float32 else None


def _rewrite(rewriter: Rewriter, cast: Cast) -> None:
    import torchao.quantization.pt2e.quantizer  # noqa: F401 - registers torch.ops.quantized_decomposed

    dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default
    with rewriter.before(cast.node):
        new = rewriter.call(dequantize, cast.source, 1.0, 0, -128, 127, torch.int8)
    rewriter.replace(cast.node, new)
