"""Compute again in the backward pass what is cheap, rather than keep it.

Before:
    %1: f32[B, H, T, T] = aten.softmax(%0, -1)
    %2: f32[B, H, T, d] = aten.bmm(%1, %v)
    ... the rest of the forward, and the backward of all later nodes
    %8: f32[B, H, T, T] = aten.mul(%1, %7)
After:
    %1: f32[B, H, T, T] = aten.softmax(%0, -1)
    %2: f32[B, H, T, d] = aten.bmm(%1, %v)
    ...
    %8: f32[B, H, T, T] = aten.softmax(%0, -1)
    %9: f32[B, H, T, T] = aten.mul(%8, %7)

An op is cheap if it has a derivative and is not a product with a constant; the product that turns halves for RoPE is
cheap too. `recomputation.py` decides which values are worth it: in a Llama the attention matrices, the inputs that
attention mixes, and the activations of the MLP; where queries and keys have norms, the values made from these too. So
is a reshaped B, which XNNPACK copies: two copies, each right before its reader, take less than one that stays for both.
With `layers` products with the weights of a block are among them, and the residual stream is kept: activation
checkpointing (Chen et al., "Training Deep Nets with Sublinear Memory Cost", section 3), with the sums of the stream as
checkpoints. Without, one sum in a few is kept where all would follow from the first. Each copy stands right before its
first reader, so that only one block's copies are alive at a time; a copy that takes one step of arithmetic from a kept
value is made for every reader.

Requires: gradients from differentiate. Ensures: the gradients there were.
Numerics: EXACT (the same ops on the same values).
Why: what a gradient adds to a device's memory is what the forward keeps for it, and nearly half of that is a few
element-wise ops away from the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from prgec.passes.dependence import downstream, upstream
from prgec.passes.derivatives import RULES
from prgec.passes.differentiate import outputs_of
from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier
from prgec.passes.program import GraphProgram
from prgec.passes.recomputation import Value, checkpoints, values_to_recompute
from prgec.passes.residual import Write, residual_writes
from prgec.passes.rewrite import Rewriter
from prgec.passes.rotate_half_to_linear import turns_halves
from prgec.passes.shapes import dtype_of, is_tensor, largest, shape_of
from prgec.passes.sites import is_b

aten = torch.ops.aten

_CHEAP = frozenset(RULES) - {aten.linear.default}
_ARITHMETIC = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})
_RESHAPES = frozenset({aten.view.default, aten.reshape.default, aten.unsqueeze.default})


@dataclass(frozen=True)
class Rematerialize(Pass):
    """Give the backward pass its own copies of what is cheap to compute.

    Attributes:
        layers: Whether the products of layers are computed again too, from the residual stream.
    """

    name: ClassVar[str] = "rematerialize"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.GRADIENTS
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"differentiate"})

    layers: bool = False

    def requires(self, program: GraphProgram) -> list[str]:
        """There are gradients, and a stream to compute layers from."""
        outputs = outputs_of(program)
        reasons = [] if len(outputs) > 1 else ["the graph returns no gradients"]
        if self.layers and not residual_writes(outputs[0]):
            reasons.append("layers are computed again from a residual stream, and the graph has none")
        return reasons

    def run(self, program: GraphProgram) -> PassResult:
        """Copy what the backward pass should compute itself."""
        forward = upstream(outputs_of(program)[:1])
        order = [node for node in program.graph.nodes if node in forward]
        number_of = {node: number for number, node in enumerate(order)}
        late = [node for node in program.graph.nodes if node.op == "call_function" and node not in forward]
        read_late = {source for node in late for source in node.all_input_nodes if source in forward}
        values = self._values(program, order, number_of, read_late)
        again = values_to_recompute(values, {number_of[node] for node in read_late})
        copies = _Copies(Rewriter(program, self.name), {order[number] for number in again})
        for node in late:
            copies.feed(node)
        copies.separate(downstream(program.placeholders()))
        return PassResult(program, copies.num_made > 0, copies.num_made)

    def _kept(self, writes: list[Write], read_late: set[Node]) -> set[Node]:
        """Sums of the stream that are kept whatever they follow from: for layers all of them, else one in a few.

        Without `layers` these matter to models with norms after layers: a norm's derivative reads the values that it
        scales, so every sum follows from the first by cheap operations.
        """
        if self.layers:
            return {node for write in writes for node in (write.stream, write.total)}
        return {writes[number].total for number in checkpoints(len(writes))} & read_late

    def _values(
        self, program: GraphProgram, order: list[Node], number_of: dict[Node, int], read_late: set[Node]
    ) -> list[Value]:
        """The forward as sizes at the largest T. Nodes that depend on no row are permanent or comparatively small."""
        of_rows = downstream(program.placeholders())
        writes = residual_writes(order[-1])
        kept = self._kept(writes, read_late)
        ends = [write.total for write in writes] if self.layers else []
        products = {node for node in upstream(ends) if node.target is aten.linear.default}
        products |= {node for node in order if turns_halves(program, node)}
        return [
            Value(
                tuple(number_of[source] for source in node.all_input_nodes if source in number_of),
                _num_bytes(node),
                node.target in _CHEAP or node in products,
                node in kept or not (node in of_rows or _is_copy_of_b(node)),
            )
            for node in order
        ]


class _Copies:
    """Copies of values for those that read them late."""

    def __init__(self, rewriter: Rewriter, again: set[Node]) -> None:
        self.rewriter = rewriter
        self.again = again
        self._copy_of: dict[Node, Node] = {}

    @property
    def num_made(self) -> int:
        """Copies so far."""
        return len(self._copy_of)

    def feed(self, node: Node) -> None:
        """Let a node read copies; those of which it is the first reader are made right before it."""
        for source in node.all_input_nodes:
            if source in self.again:
                self.rewriter.feed(node, source, self._copy(source, node))

    def separate(self, of_rows: set[Node]) -> None:
        """Let each reader have a copy of its own where that is one step from a value that is there until then."""
        position = {node: number for number, node in enumerate(self.rewriter.program.graph.nodes)}
        for copy in self._copy_of.values():
            sources = of_rows.intersection(copy.all_input_nodes)
            if copy.target not in _ARITHMETIC or len(sources) != 1:
                continue
            users = [position[each] for each in sources.pop().users if each is not copy and each in position]
            for reader in sorted(copy.users, key=position.__getitem__)[1:]:
                if any(position[reader] <= user for user in users):
                    with self.rewriter.before(reader):
                        again = self.rewriter.call(copy.target, *copy.args, **copy.kwargs)
                    self.rewriter.feed(reader, copy, again)

    def _copy(self, source: Node, reader: Node) -> Node:
        if source not in self._copy_of:
            inputs = {each: self._copy(each, reader) for each in source.all_input_nodes if each in self.again}
            args = map_arg(source.args, lambda each: inputs.get(each, each))
            with self.rewriter.before(reader):
                self._copy_of[source] = self.rewriter.call(source.target, *args, **source.kwargs)  # type: ignore[arg-type]
        return self._copy_of[source]


def _is_copy_of_b(node: Node) -> bool:
    return node.target in _RESHAPES and is_b(node.args[0])


def _num_bytes(node: Node) -> int:
    if not is_tensor(node):
        return 0
    return math.prod(map(largest, shape_of(node))) * dtype_of(node).itemsize
