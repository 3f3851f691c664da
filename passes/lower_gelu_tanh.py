"""Spell out the tanh approximation of GELU.

Before:
    %0: f32[N, T, D] = aten.gelu(%x, approximate=tanh)
After:
    %0: f32[N, T, D] = aten.mul(aten.mul(%x, %x), %x)
    %1: f32[N, T, D] = aten.add(%x, aten.mul(%0, 0.044715))
    %2: f32[N, T, D] = aten.tanh(aten.mul(%1, 0.7978845608028654))
    %3: f32[N, T, D] = aten.mul(aten.mul(%x, 0.5), aten.add(%2, 1.0))

Requires: nothing. Ensures: nothing; the exact GELU stays.
Numerics: ROUNDING.
Why: XNNPACK's serialisation drops `approximate` and computes the exact GELU, up to 5e-4 beside what the model was
trained with. The delegate accepts the op without a word, so this is about being right and not about being legal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import Pass, PassResult, Role, Tier, rewrite_matches, rounding
from prgec.passes.program import GraphProgram, argument
from prgec.passes.rewrite import Rewriter

aten = torch.ops.aten


@dataclass(frozen=True)
class LowerGeluTanh(Pass):
    """Replace GELU where it is approximated by tanh."""

    name: ClassVar[str] = "lower-gelu-tanh"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every approximated GELU."""
        found = map(match, program.calls(aten.gelu.default))
        return rewrite_matches(program, found, partial(_rewrite, Rewriter(program, self.name)))


def match(node: Node) -> Node | None:
    """Return a GELU that is approximated by tanh; None for the exact one."""
    return node if argument(node, 1, "approximate", "none") == "tanh" else None


def _rewrite(rewriter: Rewriter, node: Node) -> None:
    call, x = rewriter.call, node.args[0]
    with rewriter.before(node):
        cube = call(aten.mul.Tensor, call(aten.mul.Tensor, x, x), x)
        inner = call(aten.add.Tensor, x, call(aten.mul.Tensor, cube, 0.044715))
        gate = call(aten.tanh.default, call(aten.mul.Tensor, inner, math.sqrt(2.0 / math.pi)))
        half = call(aten.mul.Tensor, x, 0.5)
        new = call(aten.mul.Tensor, half, call(aten.add.Tensor, gate, 1.0))
    rewriter.replace(node, new)
