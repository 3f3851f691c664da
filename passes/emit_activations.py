"""Return the output of every block at the label positions, and the logits there, after the loss.

Before:
    %1: f32[N, T, D] = the output of block 0; %2, ... those of the blocks above it
    %z: f32[N, K, V] = the logits at the label positions
    %loss: f32[N] = their mean negative log-likelihood by row
    return %loss
After:
    %i: i64[N, K, D] = aten.expand(aten.unsqueeze(label_pos, -1), [-1, -1, D]), at the entry
    %a1: f32[N, K, D] = aten.gather(%1, 1, %i), directly after %1; %a2, ... after the blocks above it
    %acts: f32[N, L, K, D] = aten.view(aten.cat([%a1, %a2, ...], 1), [N, L, K, D])
    return %loss, %acts, %z

Positions are chosen directly after a block, so that nothing else of its output stays; chosen at the end, the outputs of
all blocks would be alive until then. More than four are joined in steps. A block's output is the last [N, T, D] value
traced in the module whose path ends in the block's number, or in a part of it. The logits are the input of the
log-softmax from which the targets are read.

Requires: canonicalize. Ensures: nothing.
Numerics: CHANGES (more outputs; the loss keeps its bits).
Why: a side network learns beside the model from what its blocks say at the label tokens alone (Yang et al., "PAE
MobiLLM: Privacy-Aware and Efficient LLM Fine-Tuning on the Mobile Device via Additive Side-Tuning"), so a device that
runs nothing but a forward can have a model trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.core.contract.names import TARGETS_INPUT
from prgec.passes.dependence import downstream
from prgec.passes.differentiate import outputs_of
from prgec.passes.infra import CHANGES, Pass, PassResult, Role, Tier
from prgec.passes.program import TOKENS, GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import dtype_of, is_same_shape, is_tensor, shape_of

aten = torch.ops.aten

LABEL_POSITIONS = "label_pos"
# XNNPACK joins no more at once.
MOST_JOINED = 4


@dataclass(frozen=True)
class EmitActivations(Pass):
    """Append the blocks' outputs and the logits, both at the label positions, to what the graph returns."""

    name: ClassVar[str] = "emit-activations"
    tier: ClassVar[Tier] = CHANGES
    role: ClassVar[Role] = Role.SIDE_TUNING
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"canonicalize", "select-label-tokens"})

    def requires(self, program: GraphProgram) -> list[str]:
        """Targets meet one value, the logits, and nothing but the loss is returned."""
        reasons = []
        if len(_logits(program)) != 1:
            reasons.append("the graph does not end in one loss of its logits")
        if len(outputs_of(program)) != 1:
            reasons.append("the graph returns activations or gradients already")
        return reasons

    def run(self, program: GraphProgram) -> PassResult:
        """Append both."""
        found = match(program)
        if isinstance(found, Refusal):
            return PassResult(program, False, refusals=(found,))
        rewriter = Rewriter(program, self.name)
        (logits,) = _logits(program)
        acts = _stacked(program, rewriter, found)
        rewriter.return_values([*outputs_of(program), acts, logits])
        return PassResult(program, True, len(found))


def match(program: GraphProgram) -> list[Node] | Refusal:
    """Return the outputs of the blocks, first block first."""
    tokens = program.placeholder(TOKENS)
    assert tokens is not None
    last: dict[tuple[str, int], Node] = {}
    for node in program.graph.nodes:
        if not (is_tensor(node) and dtype_of(node) == torch.float32 and len(shape_of(node)) == 3):
            continue
        if is_same_shape(shape_of(node)[:-1], shape_of(tokens)):
            last.update({block: node for block in _numbered_modules(node)})
    if not last:
        return Refusal("blocks", "no module path ends in the number of a block")
    # Blocks may hold numbered modules of their own, further down.
    blocks = min((container for container, _ in last), key=lambda path: path.count("."))
    numbers = sorted(number for container, number in last if container == blocks)
    found = [last[blocks, number] for number in numbers]
    if numbers != list(range(len(numbers))) or len({shape_of(node)[-1] for node in found}) > 1:
        return Refusal(blocks, f"its blocks {numbers} are not 0 to {len(numbers) - 1}, or differ in width")
    return found


def _stacked(program: GraphProgram, rewriter: Rewriter, blocks: list[Node]) -> Node:
    label_pos = program.placeholder(LABEL_POSITIONS)
    assert label_pos is not None
    num_rows, num_labels = shape_of(label_pos)
    width = shape_of(blocks[0])[-1]
    with rewriter.before(program.placeholders()[-1].next):
        rows = rewriter.call(aten.unsqueeze.default, label_pos, -1)
        index = rewriter.call(aten.expand.default, rows, [-1, -1, width])
    parts = []
    for block in blocks:
        with rewriter.before(block.next):
            parts.append(rewriter.call(aten.gather.default, block, 1, index))
    with rewriter.before(program.graph.output_node()):
        return rewriter.call(aten.view.default, _joined(rewriter, parts), [num_rows, len(parts), num_labels, width])


def _joined(rewriter: Rewriter, parts: list[Node]) -> Node:
    while len(parts) > 1:
        groups = [parts[at : at + MOST_JOINED] for at in range(0, len(parts), MOST_JOINED)]
        parts = [rewriter.call(aten.cat.default, each, 1) if len(each) > 1 else each[0] for each in groups]
    return parts[0]


def _numbered_modules(node: Node) -> list[tuple[str, int]]:
    """Modules a call was traced in whose paths end in a number, as (path up to it, number)."""
    stack = node.meta.get("nn_module_stack") if node.op == "call_function" else None
    paths = [str(path).rpartition(".") for path, _ in stack.values()] if stack else []
    return [(container, int(number)) for container, _, number in paths if number.isdigit()]


def _logits(program: GraphProgram) -> list[Node]:
    """Values that the model says and the targets meet; a log-softmax counts for what it is of."""
    targets = program.placeholder(TARGETS_INPUT)
    tokens = program.placeholder(TOKENS)
    assert targets is not None and tokens is not None
    scored, computed = downstream([targets]), downstream([tokens])
    met = {read for node in scored for read in node.all_input_nodes if read in computed and read not in scored}
    found = [node.args[0] if node.target is aten.log_softmax.int else node for node in met if is_tensor(node)]
    return [node for node in found if isinstance(node, Node)]
