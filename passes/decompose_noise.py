"""Write the noise as ATen integer arithmetic, for runtimes without the kernels of prgec.

Before (every site):
    %0: f32[q, r, O] = prge.randn(seed, step, 0, q, [r, O])
After (once a step number):
    %0: i64[] = aten.bitwise_and.Scalar(seed, 4294967295)
    ...
    %n: f32[q, 4M] = aten.reshape(%m, [q, 4M])
After (every site):
    %a: f32[q, rO] = aten.slice.Tensor(%n, 1, start, start + rO)
    %b: f32[q, r, O] = aten.view(%a, [q, r, O])

All sites draw from one stream of M blocks of four elements: two constant tables say which site and which block of it
each one is. So the arithmetic, about 450 ops, is in the graph once for each step number and not once for each site.

Requires: nothing. Ensures: no op of prge is left where fuse-update did not run.
Numerics: EXACT (it is `prgec.runtime_ops.noise`, traced; docs/decisions/002-noise.md).
Why: a delegate that compiles the whole step, AOTInductor's among them, can compile ATen and calls nothing of ours. The
price is memory: the noise of all sites is there at once, q times the adapter for each step number.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import EXACT, Pass, PassResult, Tier
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.runtime_ops import library as _registers_prge_ops  # noqa: F401 - torch.ops.prge exists only after it
from prgec.runtime_ops.noise import BLOCK, randn_blocks

aten = torch.ops.aten
prge = torch.ops.prge

_TABLES = "prge_noise"


@dataclass(frozen=True)
class DecomposeNoise(Pass):
    """Replace every `prge::randn` by a slice of one stream of noise."""

    name: ClassVar[str] = "decompose-noise"
    tier: ClassVar[Tier] = EXACT
    after: ClassVar[frozenset[str]] = frozenset({"insert-self-update", "hoist-updates"})

    def run(self, program: GraphProgram) -> PassResult:
        """Draw each step number's noise in front of its first use, and hand out slices."""
        streams: dict[tuple[Any, ...], list[Node]] = {}
        for node in program.calls(prge.randn.default):
            seed, step, _, q, _ = node.args
            streams.setdefault((seed, _value_key(step), q), []).append(node)
        rewriter = Rewriter(program, self.name)
        for number, draws in enumerate(streams.values()):
            _replace(rewriter, draws, f"{_TABLES}.c{number}")
        return PassResult(program, bool(streams), sum(map(len, streams.values())))

    def ensures(self, program: GraphProgram) -> list[str]:
        """No noise is drawn by our own op."""
        return [f"%{node.name} still draws noise" for node in program.calls(prge.randn.default)]


def _replace(rewriter: Rewriter, draws: list[Node], tables: str) -> None:
    """Replace draws of one seed, step and q."""
    seed, step, _, q, _ = draws[0].args
    sizes = [prod(_shape(node)) for node in draws]
    blocks = [-(-size // BLOCK) for size in sizes]
    with rewriter.before(draws[0]):
        sites_M = torch.cat([torch.full((n,), node.args[2]) for node, n in zip(draws, blocks, strict=True)])  # type: ignore[arg-type]
        blocks_M = torch.cat([torch.arange(n) for n in blocks])
        noise = rewriter.inline(
            randn_blocks, seed, step,  # type: ignore[arg-type]
            rewriter.constant(f"{tables}.sites", sites_M), rewriter.constant(f"{tables}.blocks", blocks_M),
            rewriter.constant(f"{tables}.queries", torch.arange(q).reshape(-1, 1)),  # type: ignore[arg-type]
        )  # fmt: skip
    start = 0
    for node, size, count in zip(draws, sizes, blocks, strict=True):
        with rewriter.before(node):
            part = rewriter.call(aten.slice.Tensor, noise, 1, start, start + size)
            # Not a view: with padding between sites the slice is not contiguous.
            shaped = rewriter.call(aten.reshape.default, part, [q, *_shape(node)])
        rewriter.replace(node, shaped)
        start += BLOCK * count


def _value_key(node: Any) -> tuple[Any, ...]:
    """Equal for nodes that compute the same number: each site has its own `step - 1`."""
    return (node,) if node.op != "call_function" else (node.target, node.args)


def _shape(node: Node) -> list[int]:
    shape = node.args[4]
    assert isinstance(shape, (list, tuple))
    return [int(size) for size in shape]  # type: ignore[arg-type]
