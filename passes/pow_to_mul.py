"""Write small whole powers as products, and the power -1/2 as the reciprocal square root.

Before:
    %0: f32[N, T, D] = aten.pow.Tensor_Scalar(%x, 3.0)
After:
    %0: f32[N, T, D] = aten.mul(aten.mul(%x, %x), %x)

Requires: nothing. Ensures: nothing; `pow(x, 2)` stays, which every delegate takes.
Numerics: ROUNDING (`pow` rounds once, two products twice).
Why: XNNPACK's only power is the square, and only where the exponent is the integer 2; GPT-2's GELU cubes. Gemma 4
spells its norms with a power of -0.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import Pass, PassResult, Role, Tier, rewrite_matches, rounding
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter

aten = torch.ops.aten

_LARGEST = 4
_INVERSE_ROOT = -0.5


@dataclass(frozen=True)
class PowToMul(Pass):
    """Replace powers of 2.0, 3, 4 and -0.5."""

    name: ClassVar[str] = "pow-to-mul"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every power XNNPACK does not take and a few products can replace."""
        found = map(match, program.calls(aten.pow.Tensor_Scalar))
        return rewrite_matches(program, found, partial(_rewrite, Rewriter(program, self.name)))


@dataclass(frozen=True)
class Power:
    """A power to replace: `source ** exponent`, with a whole exponent from 2 up, or -0.5."""

    node: Node
    source: Node
    exponent: float


def match(node: Node) -> Power | None:
    """Return a power to replace; None for squares XNNPACK takes and for any other exponent."""
    source, exponent = node.args
    assert isinstance(source, Node) and isinstance(exponent, (int, float))
    if exponent == _INVERSE_ROOT:
        return Power(node, source, _INVERSE_ROOT)
    if exponent not in range(2, _LARGEST + 1) or (exponent == 2 and isinstance(exponent, int)):
        return None
    return Power(node, source, exponent)


def _rewrite(rewriter: Rewriter, power: Power) -> None:
    with rewriter.before(power.node):
        new = power.source
        if power.exponent == _INVERSE_ROOT:
            new = rewriter.call(aten.rsqrt.default, power.source)
        for _ in range(int(power.exponent) - 1):
            new = rewriter.call(aten.mul.Tensor, new, power.source)
    rewriter.replace(power.node, new)
