"""Write the noise as ATen integer arithmetic, for runtimes without the kernels of prgec.

Before (every site):
    %0: f32[q, r, O] = prge.randn(seed, step, 0, q, [r, O])
After (once):
    %0: i64[2] = aten.stack([%step_before, step])
    %1: i64[] = aten.bitwise_and.Scalar(seed, 4294967295)
    ...
    %n: f32[2, q, 4M] = aten.view(%m, [2, q, 4M])
After (every site):
    %a: f32[q, 4M] = aten.select.int(%n, 0, 1)
    %b: f32[q, rO] = aten.slice.Tensor(%a, 1, start, start + rO)
    %c: f32[q, r, O] = aten.reshape(%b, [q, r, O])

All sites and both steps of an update draw from one stream of M blocks of four elements: two constant tables say which
site and which block of it each one is. So the arithmetic, about 450 ops, is in the graph once.

Requires: nothing. Ensures: no op of prge is left where fuse-update did not run.
Numerics: EXACT (it is `prgec.runtime_ops.noise`, traced; docs/decisions/002-noise.md).
Why: a delegate that compiles the whole step, AOTInductor's among them, can compile ATen and calls nothing of ours. The
price is memory: the noise of all sites is there at once, 2q times the adapter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier
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
    role: ClassVar[Role] = Role.MEASURED_LOSSES
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"insert-self-update", "hoist-updates"})

    def run(self, program: GraphProgram) -> PassResult:
        """Draw all noise before its first use, and hand out slices."""
        streams: dict[tuple[Any, ...], list[Node]] = {}
        for node in program.calls(prge.randn.default):
            streams.setdefault((node.args[0], node.args[3]), []).append(node)
        rewriter = Rewriter(program, self.name)
        for number, draws in enumerate(streams.values()):
            _replace(rewriter, draws, f"{_TABLES}.c{number}")
        return PassResult(program, bool(streams), sum(map(len, streams.values())))

    def ensures(self, program: GraphProgram) -> list[str]:
        """No noise is drawn by our own op."""
        return [f"%{node.name} still draws noise" for node in program.calls(prge.randn.default)]


@dataclass(frozen=True)
class _Draw:
    """One `prge::randn`."""

    node: Node
    step: tuple[Any, ...]
    site: int
    shape: tuple[int, ...]

    @property
    def num_blocks(self) -> int:
        return -(-prod(self.shape) // BLOCK)


def _replace(rewriter: Rewriter, nodes: list[Node], tables: str) -> None:
    """Replace draws of one seed and one q."""
    seed, _, _, q, _ = nodes[0].args
    draws = [_draw(node) for node in nodes]
    steps = list(dict.fromkeys(draw.step for draw in draws))
    starts: dict[tuple[int, tuple[int, ...]], int] = {}
    sites: list[torch.Tensor] = []
    blocks: list[torch.Tensor] = []
    for draw in draws:
        if (draw.site, draw.shape) not in starts:
            starts[draw.site, draw.shape] = BLOCK * sum(map(len, sites))
            sites.append(torch.full((draw.num_blocks,), draw.site))
            blocks.append(torch.arange(draw.num_blocks))
    with rewriter.before(nodes[0]):
        # Made again: where a site's own `step - 1` stands may be too late.
        numbers = [op if op.__class__ is Node else rewriter.call(op, *args) for op, args in steps]
        stacked = rewriter.call(aten.stack.default, numbers, 0)
        steps_S11 = rewriter.call(aten.view.default, stacked, [len(steps), 1, 1])
        constants = {"sites": torch.cat(sites), "blocks": torch.cat(blocks), "queries": torch.arange(q).reshape(-1, 1)}  # type: ignore[arg-type]
        columns = [rewriter.constant(f"{tables}.{name}", value) for name, value in constants.items()]
        noise = rewriter.inline(randn_blocks, seed, steps_S11, *columns)  # type: ignore[arg-type]
    for draw in draws:
        start = starts[draw.site, draw.shape]
        with rewriter.before(draw.node):
            of_step = rewriter.call(aten.select.int, noise, 0, steps.index(draw.step))
            part = rewriter.call(aten.slice.Tensor, of_step, 1, start, start + prod(draw.shape))
            # Not a view: a slice is not contiguous.
            shaped = rewriter.call(aten.reshape.default, part, [q, *draw.shape])
        rewriter.replace(draw.node, shaped)


def _draw(node: Node) -> _Draw:
    _, step, site, _, shape = node.args
    assert isinstance(step, Node) and isinstance(site, int) and isinstance(shape, (list, tuple))
    # Each site has its own `step - 1`; equal keys stand for equal numbers.
    key = (step, ()) if step.op != "call_function" else (step.target, step.args)
    return _Draw(node, key, site, tuple(int(size) for size in shape))  # type: ignore[arg-type]
