"""Make the program train itself: each site updates its B from the g of the step before, then perturbs it.

Before (every site):
    %0: f32[1, r, O] = aten.unsqueeze(@site.lora_B, 0)
    %1: f32[2q, r, O] = aten.expand(%0, [2q, -1, -1])
After, state=seeded (one master; noise is drawn again from the counter-based generator):
    %0 = aten.sub(step, 1)
    %1: f32[q, r, O] = prge.randn(seed, %0, site, q, [r, O])      z of the step before
    ...  M' = M - lr/q * sum_i g_i z_i;  copy_(M, M')
    %n: f32[q, r, O] = prge.randn(seed, step, site, q, [r, O])    z of this step
    ...  copies = [M' + eps z_i, M' - eps z_i]                    f32[2q, r, O]
After, state=dual (2q copies kept, noise recovered as (B+ - B-) / 2 eps):
    ...  M' = (B+ + B-)/2 - lr/(q eps_prev) * sum_i g_i (B+_i - B-_i)/2
    ...  copy_(B, [M' + eps z_i, M' - eps z_i]); copy_(eps_prev, eps)
After, state=host (the host keeps the masters, and makes the copies):
    lora_B_0: f32[2q, r, O]                                       an input

The first two add the inputs g f32[q], lr f32[], eps f32[], seed i64[], step i64[].

Requires: sites from dualize. Ensures: every site's B is written once, or is no longer a weight of the program.
Numerics: CHANGES (this is the training step; with g = 0 and eps = 0 the losses are those of the graph before).
Why: an inference runtime has no optimiser, but it has buffers and arithmetic. Dual state is the module of Gao et al.,
"Enabling Efficient On-Device Fine-Tuning of LLMs Using Only Inference Engines", section 3.3 (Algorithm 2). Copies that
are inputs leave nothing in the graph that a stock runtime has no kernel for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.core.contract.names import DUAL_EPS_STATE, HOST_STATE, STATE_MODES
from prgec.passes.infra import CHANGES, Pass, PassResult, Role, Tier
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import shape_of
from prgec.passes.sites import b_names, copies, state_input, state_inputs
from prgec.runtime_ops import library as _registers_prge_ops  # noqa: F401 - torch.ops.prge exists only after it

aten = torch.ops.aten
prge = torch.ops.prge

# Keeps 0 / eps finite before the first step and after an evaluation, when B+ = B- and the noise is zero anyway.
_SMALLEST_EPS = 1e-30


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The scalar inputs of the training step, as nodes: g f32[q]; lr, eps f32[]; seed, step i64[]."""

    g: Node
    lr: Node
    eps: Node
    seed: Node
    step: Node


@dataclass(frozen=True)
class InsertSelfUpdate(Pass):
    """Insert update and perturbation arithmetic at every site.

    Attributes:
        state: `seeded`, `dual` or `host`.
    """

    name: ClassVar[str] = "insert-self-update"
    tier: ClassVar[Tier] = CHANGES
    role: ClassVar[Role] = Role.MEASURED_LOSSES
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"dualize"})

    state: str = "seeded"

    def requires(self, program: GraphProgram) -> list[str]:
        """The state mode exists and no update is there yet."""
        reasons = []
        if self.state not in STATE_MODES:
            reasons.append(f"state is {self.state!r}; expected one of {', '.join(STATE_MODES)}")
        if program.placeholder("g") is not None or state_inputs(program):
            reasons.append("the graph updates itself already")
        return reasons

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every site, in the order of their noise index."""
        rewriter = Rewriter(program, self.name)
        sites = copies(program)
        if not sites:
            return PassResult(program, False)
        if self.state == HOST_STATE:
            for index, (expand, _) in enumerate(sites):
                zeros = torch.zeros([int(size) for size in shape_of(expand)])
                rewriter.replace(expand, rewriter.input(state_input(index), zeros))
            return PassResult(program, True, len(sites))
        q = int(shape_of(sites[0][0])[0]) // 2
        inputs = _add_inputs(rewriter, q)
        if self.state == "seeded":
            for index, (expand, master) in enumerate(sites):
                _insert_seeded(rewriter, inputs, expand, master, index)
        else:
            _insert_dual(rewriter, inputs, sites)
        return PassResult(program, True, len(sites))

    def ensures(self, program: GraphProgram) -> list[str]:
        """Every B is part of the mutable state."""
        never = set(b_names(program)) - set(program.state_names())
        return [f"{name} is never updated" for name in sorted(never)]


def _add_inputs(rewriter: Rewriter, q: int) -> Inputs:
    scalar, integer = torch.zeros(()), torch.zeros((), dtype=torch.int64)
    return Inputs(
        g=rewriter.input("g", torch.zeros(q)),
        lr=rewriter.input("lr", scalar),
        eps=rewriter.input("eps", scalar.clone()),
        seed=rewriter.input("seed", integer),
        step=rewriter.input("step", integer.clone()),
    )


def _insert_seeded(rewriter: Rewriter, inputs: Inputs, expand: Node, master: Node, site: int) -> None:
    rank, out = shape_of(master)
    q = int(shape_of(inputs.g)[0])
    call = rewriter.call
    with rewriter.before(expand):
        step_before = call(aten.sub.Tensor, inputs.step, 1)
        z_before = call(prge.randn.default, inputs.seed, step_before, site, q, [rank, out])
        updated = _update(rewriter, inputs, master, z_before, call(aten.div.Tensor, inputs.lr, q))
        call(aten.copy_.default, master, updated)
        z_now = call(prge.randn.default, inputs.seed, inputs.step, site, q, [rank, out])
        stacked = _perturb(rewriter, inputs, updated, z_now)
        perturbed = call(aten.view.default, stacked, [2 * q, rank, out])
    rewriter.replace(expand, perturbed)


def _insert_dual(rewriter: Rewriter, inputs: Inputs, sites: list[tuple[Node, Node]]) -> None:
    call = rewriter.call
    with rewriter.before(sites[0][0]):
        # Two elements: one-element mutable buffers are folded into constants by some delegates.
        eps_before = rewriter.state(DUAL_EPS_STATE, torch.zeros(2))
        safe_eps = call(aten.clamp.default, call(aten.select.int, eps_before, 0, 0), _SMALLEST_EPS)
        q = int(shape_of(inputs.g)[0])
        rate = call(aten.div.Tensor, inputs.lr, call(aten.mul.Tensor, safe_eps, q))
    for index, (expand, master) in enumerate(sites):
        _insert_dual_site(rewriter, inputs, expand, master, index, rate)
    with rewriter.before(sites[-1][0]):
        call(aten.copy_.default, eps_before, call(aten.expand.default, inputs.eps, [2]))
    for expand, _ in sites:
        rewriter.erase(expand)


def _insert_dual_site(rewriter: Rewriter, inputs: Inputs, expand: Node, old: Node, site: int, rate: Node) -> None:
    rank, out = shape_of(old)
    q = int(shape_of(inputs.g)[0])
    call = rewriter.call
    with rewriter.before(expand):
        b_Q2RO = rewriter.state(str(old.target), torch.zeros(q, 2, int(rank), int(out)))
        plus, minus = call(aten.select.int, b_Q2RO, 1, 0), call(aten.select.int, b_Q2RO, 1, 1)
        # All queries share one master; taking query 0's keeps them from drifting apart by rounding.
        total = call(aten.add.Tensor, call(aten.select.int, plus, 0, 0), call(aten.select.int, minus, 0, 0))
        master = call(aten.mul.Tensor, total, 0.5)
        noise = call(aten.mul.Tensor, call(aten.sub.Tensor, plus, minus), 0.5)
        updated = _update(rewriter, inputs, master, noise, rate)
        z_now = call(prge.randn.default, inputs.seed, inputs.step, site, q, [rank, out])
        stacked = _perturb(rewriter, inputs, updated, z_now)
        call(aten.copy_.default, b_Q2RO, stacked)
        perturbed = call(aten.view.default, stacked, [2 * q, rank, out])
    rewriter.redirect(expand, perturbed)


def _update(rewriter: Rewriter, inputs: Inputs, master: Node, z_QRO: Node, rate: Node) -> Node:
    """`M - rate * sum_i g_i z_i`."""
    q = int(shape_of(inputs.g)[0])
    call = rewriter.call
    weighted = call(aten.mul.Tensor, z_QRO, call(aten.view.default, inputs.g, [q, 1, 1]))
    direction = call(aten.sum.dim_IntList, weighted, [0])
    return call(aten.sub.Tensor, master, call(aten.mul.Tensor, direction, rate))


def _perturb(rewriter: Rewriter, inputs: Inputs, master: Node, z_QRO: Node) -> Node:
    """`[M + eps z_i, M - eps z_i]` as f32[q, 2, r, O]."""
    call = rewriter.call
    scaled = call(aten.mul.Tensor, z_QRO, inputs.eps)
    return call(aten.stack.default, [call(aten.add.Tensor, master, scaled), call(aten.sub.Tensor, master, scaled)], 1)
