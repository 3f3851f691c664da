"""Write small whole powers as products.

Before:
    %0: f32[N, T, D] = aten.pow.Tensor_Scalar(%x, 3.0)
After:
    %0: f32[N, T, D] = aten.mul(aten.mul(%x, %x), %x)

Requires: nothing. Ensures: nothing; `pow(x, 2)` stays, which every delegate takes.
Numerics: ROUNDING (`pow` rounds once, two products twice).
Why: XNNPACK's only power is the square, and only where the exponent is the integer 2; GPT-2's GELU cubes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from prgec.passes.infra import Pass, PassResult, Tier, rounding
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter

aten = torch.ops.aten

_LARGEST = 4


@dataclass(frozen=True)
class PowToMul(Pass):
    """Replace powers of 2.0, 3 and 4."""

    name: ClassVar[str] = "pow-to-mul"
    tier: ClassVar[Tier] = rounding(1e-5)
    after: ClassVar[frozenset[str]] = frozenset({"inject-lora-fa"})
    is_legality: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every power XNNPACK does not take and a few products can replace."""
        rewriter = Rewriter(program, self.name)
        hits = 0
        for node in program.calls(aten.pow.Tensor_Scalar):
            source, exponent = node.args
            if exponent not in range(2, _LARGEST + 1) or exponent == 2 and isinstance(exponent, int):
                continue
            with rewriter.before(node):
                new = source
                for _ in range(int(exponent) - 1):  # type: ignore[arg-type]
                    new = rewriter.call(aten.mul.Tensor, new, source)
            rewriter.replace(node, new)  # type: ignore[arg-type]
            hits += 1
        return PassResult(program, hits > 0, hits)
