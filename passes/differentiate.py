"""Add the gradient of every trained B, as ordinary inference ops, after the loss.

Before:
    %z: f32[B, K, V] = the logits at the label positions
    %loss: f32[B] = their mean negative log-likelihood by row
    return %loss
After:
    %0: f32[B, K, V] = one-hot rows of the targets; %1: f32[B, K, 1] = the weight of each label in the mean
    %2: f32[B, K, V] = aten.mul(aten.sub(aten.softmax(%z), %0), %1)
    ...  derivatives of the ops between %z and the sites, last one first
    return %loss, %g0, %g1, ...                                     f32[r, O], in the order of the sites

Gradients are those of the mean of the B losses. `method=exact` walks back through every trained block.
`method=shortcut` walks back through the last trained block and hands the gradient at its input, unchanged, to the
layers of the blocks below that write to the residual stream: the stream is a sum, so its derivative is the identity
to first order, and nothing of those blocks has to be kept, transposed or multiplied. `loss-scale=S`, a power of two,
multiplies the loss gradient by S and every result by 1 / S, for delegates whose 16 bits hold no small gradients
(Micikevicius et al., "Mixed Precision Training", section 3.2). `weighted=true` adds the input weights f32[B, K], which
%1 is multiplied by: gradients are those of the sum of weighted losses over the same counts, whatever the signs.

Requires: branch-to-bmm; for shortcut, inject-lora-fa{only-writers=true}. Ensures: one gradient for each site.
Numerics: CHANGES (more outputs; the loss keeps its bits).
Why: an inference engine differentiates nothing, but a compiler does, and the backward of a frozen transformer is made
of the ops an engine runs. LoRA-FA (Zhang et al., "LoRA-FA: Memory-efficient Low-rank Adaptation for Large Language
Models Fine-tuning") needs only x A^T, r numbers a token, of each layer's input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeAlias

import torch
from torch.fx import Node

from prgec.core.contract.names import IGNORE_TARGET, TARGETS_INPUT, WEIGHTS_INPUT
from prgec.errors import PassError
from prgec.passes.dependence import upstream
from prgec.passes.derivatives import RULES
from prgec.passes.infra import CHANGES, Pass, PassResult, Role, Tier
from prgec.passes.layer_choice import block_of
from prgec.passes.program import GraphProgram
from prgec.passes.residual import Write, nearest_states, residual_writes
from prgec.passes.reverse import gradients
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import shape_of
from prgec.passes.sites import b_names, is_b, site_of

aten = torch.ops.aten

# Gradients of some nodes, from those of others.
_Walk: TypeAlias = Callable[[Mapping[Node, Node], Sequence[Node]], dict[Node, Node]]

EXACT, SHORTCUT = "exact", "shortcut"
METHODS = (EXACT, SHORTCUT)


@dataclass(frozen=True)
class Differentiate(Pass):
    """Append gradients to the outputs.

    Attributes:
        method: `exact` or `shortcut`.
        loss_scale: Factor of all gradients until the last op divides by it, a power of two.
        half: Whether numbers have 16 bits where the graph will run.
        weighted: Whether the host says what each label counts.
    """

    name: ClassVar[str] = "differentiate"
    tier: ClassVar[Tier] = CHANGES
    role: ClassVar[Role] = Role.GRADIENTS
    touches_prefix: ClassVar[bool] = False
    # Legality passes that leave only ops with a derivative.
    needs: ClassVar[frozenset[str]] = frozenset(
        {
            "lower-sdpa",
            "lower-eager-attention",
            "layer-norm-to-means",
            "mean-to-linear",
            "rotate-half-to-linear",
            "split-fused-linear",
            "slice-to-linear",
            "pow-to-mul",
            "lower-softplus",
            "lower-gelu-tanh",
            "label-gather-to-bmm",
        }
    )
    after: ClassVar[frozenset[str]] = needs | {"branch-to-bmm"}

    method: str = EXACT
    loss_scale: float = 1.0
    half: bool = False
    weighted: bool = False

    def requires(self, program: GraphProgram) -> list[str]:
        """There are sites, one log-softmax, and no gradients yet."""
        reasons = []
        if self.method not in METHODS:
            reasons.append(f"method is {self.method!r}; expected one of {', '.join(METHODS)}")
        if self.loss_scale <= 0 or math.frexp(self.loss_scale)[0] != 0.5:
            reasons.append(f"loss-scale is {self.loss_scale}; expected a power of two")
        if program.placeholder(TARGETS_INPUT) is None or len(list(_log_softmaxes(program))) != 1:
            reasons.append("the graph does not end in one log_softmax of its logits")
        if not b_names(program):
            reasons.append("no layer is trained")
        if len(outputs_of(program)) != 1:
            reasons.append("the graph returns gradients or state already")
        return reasons

    def run(self, program: GraphProgram) -> PassResult:
        """Append one gradient for each site."""
        rewriter = Rewriter(program, self.name)
        end = program.graph.output_node()
        (log_softmax,) = _log_softmaxes(program)
        logits = log_softmax.args[0]
        assert isinstance(logits, Node)
        states = {str(node.target): node for node in _first_reads(program)}
        with rewriter.before(end):
            seed = _loss_gradient(program, rewriter, logits, self.loss_scale, weighted=self.weighted)
            walk = _exact if self.method == EXACT else _shortcut
            found = walk(partial(gradients, rewriter, RULES, half=self.half), logits, seed, states)
            if self.loss_scale != 1.0:
                found = {b: rewriter.call(aten.mul.Tensor, each, 1.0 / self.loss_scale) for b, each in found.items()}
        missing = [name for name in states if states[name] not in found]
        if missing:
            raise PassError(f"{self.name}: no gradient reaches {missing[0]}", hint=_SHORTCUT_HINT)
        rewriter.return_values([*outputs_of(program), *(found[states[name]] for name in b_names(program))])
        return PassResult(program, True, len(states))

    def ensures(self, program: GraphProgram) -> list[str]:
        """One gradient for each site, in its shape."""
        shapes = [tuple(program.attribute(node).shape) for node in _first_reads(program)]
        returned = [tuple(shape_of(node)) for node in outputs_of(program)[1:]]
        return [] if shapes == returned else [f"gradients have shapes {returned}; the sites have {shapes}"]


_SHORTCUT_HINT = "with method=shortcut, sites are those of inject-lora-fa{only-writers=true}"


def _loss_gradient(program: GraphProgram, rewriter: Rewriter, logits: Node, scale: float, *, weighted: bool) -> Node:
    """Gradient of the scaled mean loss by the logits: softmax less one-hot rows, times each label's weight in the mean.

    One-hot rows and weights depend on the targets alone, so they are made outside a delegate.
    """
    call = rewriter.call
    targets = program.placeholder(TARGETS_INPUT)
    assert targets is not None
    num_rows, _, vocab = (int(size) for size in shape_of(logits))
    counts = call(aten.to.dtype, call(aten.ne.Scalar, targets, IGNORE_TARGET), torch.float32)
    num_counted = call(aten.clamp.default, call(aten.sum.dim_IntList, counts, [1], True), 1.0)
    weights = call(aten.div.Tensor, counts, call(aten.mul.Tensor, num_counted, float(num_rows) / scale))
    if weighted:
        shape = [int(size) for size in shape_of(targets)]
        weights = call(aten.mul.Tensor, weights, rewriter.input(WEIGHTS_INPUT, torch.zeros(shape)))
    tokens = rewriter.folded(torch.arange(vocab))
    hit = call(aten.eq.Tensor, call(aten.unsqueeze.default, targets, -1), tokens)
    one_hot = call(aten.to.dtype, hit, torch.float32)
    excess = call(aten.sub.Tensor, call(aten.softmax.int, logits, -1), one_hot)
    return call(aten.mul.Tensor, excess, call(aten.unsqueeze.default, weights, -1))


def _exact(walk: _Walk, logits: Node, seed: Node, states: Mapping[str, Node]) -> dict[Node, Node]:
    return walk({logits: seed}, list(states.values()))


def _shortcut(walk: _Walk, logits: Node, seed: Node, states: Mapping[str, Node]) -> dict[Node, Node]:
    """Exact down to the input of the last trained block, then the same gradient for every write below it."""
    last = max(block for node in states.values() if (block := block_of(site_of(node))) is not None)
    in_last = [node for node in states.values() if block_of(site_of(node)) in (last, None)]
    below = [node for node in states.values() if node not in in_last]
    writes = residual_writes(logits)
    first = next((n for n, write in enumerate(writes) if _holds_any(write, in_last)), None)
    if first is None:
        raise PassError(f"{Differentiate.name}: block {last} writes to no residual stream", hint="use method exact")
    stream = writes[first].stream
    found = walk({logits: seed}, [stream, *in_last] if below else in_last)
    handed_down = found.pop(stream, None)
    if handed_down is not None:
        # One at a time: what is written below reaches the writes above it too, and that way is the one cut short.
        for write in writes[:first]:
            found |= walk({write.written: handed_down}, nearest_states(write.written))
    return found


def _holds_any(write: Write, states: Sequence[Node]) -> bool:
    """Whether one of the sites is between the stream and what this write adds to it."""
    return not (upstream([write.written]) - upstream([write.stream])).isdisjoint(states)


def _log_softmaxes(program: GraphProgram) -> Iterator[Node]:
    return program.calls(aten.log_softmax.int)


def outputs_of(program: GraphProgram) -> list[Node]:
    """Results of the graph, in order."""
    end = program.graph.output_node()
    returned = end.args[0]
    assert isinstance(returned, list | tuple)
    return [each for each in returned if isinstance(each, Node)]


def _first_reads(program: GraphProgram) -> list[Node]:
    """One read of each B, in the order of the sites."""
    reads: dict[str, Node] = {}
    for node in filter(is_b, program.graph.nodes):
        reads.setdefault(str(node.target), node)
    return list(reads.values())
