"""Replace the update arithmetic of a site by one `prge::dual_update`, or by `prge::perturbation` and its copies.

Before:
    %0: i64[] = aten.sub(step, 1)
    %1: f32[q, r, O] = prge.randn(seed, %0, 0, q, [r, O])
    %2: f32[] = aten.div(lr, q)
    %3: f32[q, 1, 1] = aten.view(g, [q, 1, 1])
    %4: f32[q, r, O] = aten.mul(%1, %3)
    %5: f32[r, O] = aten.sum.dim_IntList(%4, [0])
    %6: f32[r, O] = aten.mul(%5, %2)
    %7: f32[r, O] = aten.sub(@site.lora_B, %6)
    %8: f32[r, O] = aten.copy_(@site.lora_B, %7)
    %9: f32[q, r, O] = prge.randn(seed, step, 0, q, [r, O])
    %10: f32[q, r, O] = aten.mul(%9, eps)
    %11: f32[q, r, O] = aten.add(%7, %10)
    %12: f32[q, r, O] = aten.sub(%7, %10)
    %13: f32[q, 2, r, O] = aten.stack([%11, %12], 1)
    %14: f32[2q, r, O] = aten.view(%13, [2q, r, O])
After:
    %0: f32[2q, r, O] = prge.dual_update(@site.lora_B, g, lr, eps, seed, step, 0)
Requires: updates from insert-self-update with state=seeded; dual state keeps its arithmetic (it must run on
runtimes without our kernels, and its noise may come from another source).
Ensures: nothing. Numerics: ROUNDING (the kernel sums queries in order; `sum` may not).
Why: the chain streams q noise tensors through memory four times; the kernel makes them in registers. The results of a
kernel that a delegate reads exist for all sites at once, while those of a delegate last until they are read: with
spread=true a step holds q tensors of the size of B in place of 2q, whose sums and differences are the same bits: %0:
f32[q, 1, r, O] = prge.perturbation(@site.lora_B, g, lr, eps, seed, step, 0) ... the nodes before the first reader of
the copies %1: f32[q, 2, r, O] = aten.mul(%0, [+1, -1]) %2: f32[q, 2, r, O] = aten.add(%1, @site.lora_B) %3: f32[2q, r,
O] = aten.view(%2, [2q, r, O])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import Pass, PassResult, Role, Tier, rewrite_matches, rounding
from prgec.passes.program import GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import shape_of
from prgec.passes.sites import writes
from prgec.runtime_ops import library as _registers_prge_ops  # noqa: F401 - torch.ops.prge exists only after it

aten = torch.ops.aten
prge = torch.ops.prge

_SIGNS = "prge_signs"


@dataclass(frozen=True, kw_only=True)
class UpdateMatch:
    """The chain of one site: its state, the write to it, the copies it ends in, and the step inputs."""

    state: Node
    write: Node
    copies: Node
    inputs: tuple[Node, ...]
    site: int


class _Mismatch(Exception):
    """The chain is not the one this pass replaces; the message says where. Never leaves `match`."""


@dataclass(frozen=True)
class FuseUpdate(Pass):
    """Fuse each seeded update chain into the kernel.

    Attributes:
        spread: Whether copies are made of the perturbation where they are read.
    """

    name: ClassVar[str] = "fuse-update"
    tier: ClassVar[Tier] = rounding(1e-5)
    role: ClassVar[Role] = Role.MEASURED_LOSSES
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"insert-self-update", "hoist-updates"})

    spread: bool = False

    def run(self, program: GraphProgram) -> PassResult:
        """Fuse every chain that matches; say why others do not."""
        found = (match(write) for write, _ in writes(program))
        return rewrite_matches(program, found, partial(_fuse, Rewriter(program, self.name), self.spread))


def match(write: Node) -> UpdateMatch | Refusal:
    """Return the chain around one `copy_`, or where it has another form."""
    state = write.args[0]
    assert isinstance(state, Node)
    try:
        return _chain(write, state)
    except _Mismatch as reason:
        return Refusal(str(state.target), str(reason))


def _chain(write: Node, state: Node) -> UpdateMatch:
    """The chain, link by link; each raises a _Mismatch where it is not what insert-self-update made."""
    updated = write.args[1]
    assert isinstance(updated, Node)
    if len(shape_of(state)) != 2:
        raise _Mismatch("keeps 2q copies (dual state); only a single master is fused")
    old, change = _arguments(updated, aten.sub.Tensor, "the update")
    if old is not state:
        raise _Mismatch("the update does not start from the stored master")
    direction, rate = _arguments(change, aten.mul.Tensor, "the change")
    lr, q = _arguments(rate, aten.div.Tensor, "the rate")
    weighted = _arguments(direction, aten.sum.dim_IntList, "the direction")[0]
    z_before, g_view = _arguments(weighted, aten.mul.Tensor, "the weighted noise")
    g = _arguments(g_view, aten.view.default, "the weights")[0]
    if shape_of(g) != (q,):
        raise _Mismatch(f"the rate is lr / {q}; expected lr / {shape_of(g)[0]}")
    seed, step_before, site = _arguments(z_before, prge.randn.default, "the noise of the step before")[:3]
    step, distance = _arguments(step_before, aten.sub.Tensor, "the step before")
    if distance != 1:
        raise _Mismatch(f"the update uses the noise of {distance} steps before; expected 1")
    copies, eps = _perturbation(updated, (seed, step, site))
    return UpdateMatch(state=state, write=write, copies=copies, inputs=(g, lr, eps, seed, step), site=site)


def _perturbation(updated: Node, noise_key: tuple[Any, ...]) -> tuple[Node, Node]:
    plus = _only_user(updated, aten.add.Tensor, "M + eps z")
    stacked = _only_user(plus, aten.stack.default, "the pair")
    copies = _only_user(stacked, aten.view.default, "the copies")
    scaled = _arguments(plus, aten.add.Tensor, "M + eps z")[1]
    z_now, eps = _arguments(scaled, aten.mul.Tensor, "the scaled noise")
    if tuple(_arguments(z_now, prge.randn.default, "the noise of this step")[:3]) != noise_key:
        raise _Mismatch("the noise of this step has another key than the update's")
    minus = _only_user(updated, aten.sub.Tensor, "M - eps z")
    if minus.args != (updated, scaled) or stacked.args != ([plus, minus], 1):
        raise _Mismatch("the pair is not M + eps z, M - eps z")
    return copies, eps


def _arguments(node: Any, op: Callable[..., Any], what: str) -> tuple[Any, ...]:
    if not isinstance(node, Node) or node.target is not op:
        raise _Mismatch(f"{what} is {node.target if isinstance(node, Node) else node}; expected {op}")
    return node.args


def _only_user(node: Node, op: Callable[..., Any], what: str) -> Node:
    users = [user for user in node.users if user.target is op]
    if len(users) != 1:
        raise _Mismatch(f"{what} appears {len(users)} times; expected once")
    return users[0]


def _fuse(rewriter: Rewriter, spread: bool, found: UpdateMatch) -> None:
    op = prge.perturbation if spread else prge.dual_update
    with rewriter.before(found.write):
        fused = rewriter.call(op.default, found.state, *found.inputs, found.site)
    rewriter.erase(found.write)
    rewriter.replace(found.copies, _copies(rewriter, found, fused) if spread else fused)


def _copies(rewriter: Rewriter, found: UpdateMatch, perturbation: Node) -> Node:
    """Make M + eps z and M - eps z right before their first reader, so that they live only while they are read."""
    readers = set(found.copies.users)
    first = next(node for node in found.copies.graph.nodes if node in readers)
    with rewriter.before(first):
        signs = rewriter.constant(_SIGNS, torch.tensor([1.0, -1.0]).view(1, 2, 1, 1))
        moves = rewriter.call(aten.mul.Tensor, perturbation, signs)
        moved = rewriter.call(aten.add.Tensor, moves, found.state)
        return rewriter.call(aten.view.default, moved, shape_of(found.copies))
