"""Let the program take the step its gradients say, in the call that computes them.

Before:
    return %loss, %g0, %g1, ...                                        f32[r, O], one for each site
After:
    %s: f32[4] = prge.step_scale(@prge_optimizer, [%g0, %g1, ...], %loss, lr, clip, beta1, beta2, normalise, polyak)
    %0: f32[1] = prge.adamw_update(@site.lora_B, @site.lora_B_mean, @site.lora_B_square, %g0, lr, %s, ...)
    ...
    return %loss, %s

Adds the input lr f32[]. `rule=norm` is SGD whose steps have one length, with one number of state for all sites;
`rule=momentum` the same along a running mean, one more tensor a site; `rule=adamw` two more. `%s` reports the step to
the host: the scale (0 where the loss or the gradient was not finite and nothing changed) and the norm.

Requires: gradients from differentiate. Ensures: every site's B is written once.
Numerics: CHANGES (this is the training step; the losses are those of the state before it).
Why: a runtime without an optimiser has kernels, and an update in the same call leaves nothing pending between calls.

With `accumulate` a step may be several calls, and each adds to what the step gathered so far:
    %s0: f32[B] = prge.accumulate(@prge_loss_sum, %loss, call)
    %m0: f32[r, O] = prge.accumulate(@site.lora_B_sum, %g0, call)
stand for %loss and %g0 in what follows. The input call i64[2] says how many calls came before, and whether this is the
last; where it is not, %s0 is infinite, and nothing but the sums changes.

With `state=host` the host keeps B and takes the step. Only the place changes where the graph reads B:
    lora_B_0: f32[r, O]     an input
    return %loss, %g0, %g1, ...
The rule and its numbers are then the host's concern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.core.contract.names import (
    CALL_INPUT,
    HOST_STATE,
    LOSS_SUM_STATE,
    OPTIMIZER_STATE,
    OPTIMIZERS,
    STATE_SUFFIX_MEAN,
    STATE_SUFFIX_SQUARE,
    STATE_SUFFIX_SUM,
)
from prgec.passes.differentiate import outputs_of
from prgec.passes.infra import CHANGES, Pass, PassResult, Role, Tier
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import shape_of
from prgec.passes.sites import b_names, is_b, state_input, state_inputs
from prgec.runtime_ops import library as _registers_prge_ops  # noqa: F401 - torch.ops.prge exists only after it

prge = torch.ops.prge

_STATES = ("seeded", HOST_STATE)


@dataclass(frozen=True, kw_only=True)
class InsertOptimizer(Pass):
    """Replace the gradients among the outputs by updates.

    Attributes:
        rule: `norm`, `momentum` or `adamw`.
        clip: Longest gradient of all sites together; 0 for any.
        beta1: Decay of the running mean of gradients.
        beta2: Decay of the running mean of their squares.
        eps: Constant that AdamW adds to the root.
        decay: Decoupled weight decay.
        polyak: Largest share of the loss that a step may aim to take away; 0 for any.
        accumulate: Whether a step may be several calls.
        state: Keeper of B and of the optimiser's state: the program (`seeded`) or the host (`host`).
    """

    name: ClassVar[str] = "insert-optimizer"
    tier: ClassVar[Tier] = CHANGES
    role: ClassVar[Role] = Role.GRADIENTS
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"differentiate"})

    rule: str = "norm"
    clip: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.0
    polyak: float = 0.2
    accumulate: bool = False
    state: str = "seeded"

    def requires(self, program: GraphProgram) -> Sequence[str]:
        """The rule is known and there is a gradient for each site."""
        reasons = []
        if self.rule not in OPTIMIZERS:
            reasons.append(f"rule is {self.rule!r}; expected one of {', '.join(OPTIMIZERS)}")
        if self.state not in _STATES:
            reasons.append(f"state is {self.state!r}; expected one of {', '.join(_STATES)}")
        if not (0.0 <= self.beta1 < 1.0 and 0.0 <= self.beta2 < 1.0):
            reasons.append(f"beta1 is {self.beta1} and beta2 {self.beta2}; expected 0 or more and less than 1")
        if min(self.clip, self.eps, self.decay, self.polyak) < 0.0:
            reasons.append(
                f"clip is {self.clip}, eps {self.eps}, decay {self.decay} and polyak {self.polyak}; expected 0 or more"
            )
        if program.placeholder("lr") is not None or state_inputs(program):
            reasons.append("the graph updates itself already")
        elif len(outputs_of(program)) != 1 + len(b_names(program)):
            reasons.append("the graph does not return one gradient for each site")
        return reasons

    def run(self, program: GraphProgram) -> PassResult:
        """Update every site, in the order of the sites; or make inputs of what the host keeps."""
        rewriter = Rewriter(program, self.name)
        if self.state == HOST_STATE:
            return PassResult(program, True, _take_masters(program, rewriter))
        loss, *gradients = outputs_of(program)
        lr = rewriter.input("lr", torch.zeros(()))
        end = program.graph.output_node()
        with rewriter.before(end):
            mean_loss = loss
            if self.accumulate:
                mean_loss, *gradients = _gathered(rewriter, b_names(program), loss, gradients)
            running = rewriter.state(OPTIMIZER_STATE, torch.zeros(4))
            factors = rewriter.call(
                prge.step_scale.default,
                running,
                gradients,
                mean_loss,
                lr,
                self.clip,
                self.beta1,
                self.beta2,
                self.rule != "adamw",
                self.polyak,
            )
            for name, gradient in zip(b_names(program), gradients, strict=True):
                self._update(rewriter, name, gradient, lr, factors)
        rewriter.return_values([loss, factors])
        return PassResult(program, True, len(gradients))

    def ensures(self, program: GraphProgram) -> list[str]:
        """Every B is part of the mutable state."""
        updated = set(program.state_names())
        return [f"{name} is never updated" for name in b_names(program) if name not in updated]

    def _update(self, rewriter: Rewriter, name: str, gradient: Node, lr: Node, factors: Node) -> None:
        call, master = rewriter.call, rewriter.read(name)
        zeros = _zeros_like(master)
        if self.rule == "norm":
            call(prge.sgd_update.default, master, gradient, lr, factors, self.decay)
            return
        mean = rewriter.state(name + STATE_SUFFIX_MEAN, zeros)
        if self.rule == "momentum":
            call(prge.momentum_update.default, master, mean, gradient, lr, factors, self.beta1, self.decay)
            return
        square = rewriter.state(name + STATE_SUFFIX_SQUARE, zeros.clone())
        betas = (self.beta1, self.beta2, self.eps, self.decay)
        call(prge.adamw_update.default, master, mean, square, gradient, lr, factors, *betas)


def _take_masters(program: GraphProgram, rewriter: Rewriter) -> int:
    reads: dict[str, list[Node]] = {}
    for node in filter(is_b, program.graph.nodes):
        reads.setdefault(str(node.target), []).append(node)
    for index, nodes in enumerate(reads.values()):
        entry = rewriter.input(state_input(index), _zeros_like(nodes[0]))
        for node in nodes:
            rewriter.replace(node, entry)
    return len(reads)


def _gathered(rewriter: Rewriter, names: Sequence[str], loss: Node, gradients: Sequence[Node]) -> list[Node]:
    """Means of losses and gradients over the calls of a step; infinite in all but its last one."""
    call = rewriter.input(CALL_INPUT, torch.zeros(2, dtype=torch.int64))
    sums = [LOSS_SUM_STATE, *(name + STATE_SUFFIX_SUM for name in names)]
    return [
        rewriter.call(prge.accumulate.default, rewriter.state(name, _zeros_like(value)), value, call)
        for name, value in zip(sums, (loss, *gradients), strict=True)
    ]


def _zeros_like(node: Node) -> torch.Tensor:
    return torch.zeros([int(size) for size in shape_of(node)])
