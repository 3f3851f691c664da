"""Move all updates to the entry of the graph, so that the forward after them is one region.

Before:
    %0: f32[N, T, D] = aten.embedding(@embed.weight, tokens)
    ...
    %k = prge.randn(seed, step, 0, q, [r, O])
    %m = aten.copy_(@site.lora_B, %j)
    ...
After:
    %0 = prge.randn(seed, step, 0, q, [r, O])
    %1 = aten.copy_(@site.lora_B, %j)
    ...
    %n: f32[N, T, D] = aten.embedding(@embed.weight, tokens)

Requires: nothing. Ensures: no update follows a node that depends on a row.
Numerics: EXACT (updates never depend on rows).
Why: an update between two layers cuts the delegate there; TinyLlama went from 15 delegates to 3 by this alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from prgec.passes.dependence import ROWS, updates_of
from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier
from prgec.passes.program import GraphProgram, is_mutation
from prgec.passes.rewrite import Rewriter


@dataclass(frozen=True)
class HoistUpdates(Pass):
    """Move the nodes that depend on state or step inputs, but on no row, before all others."""

    name: ClassVar[str] = "hoist-updates"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.MEASURED_LOSSES
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"insert-self-update"})

    def run(self, program: GraphProgram) -> PassResult:
        """Move the update region."""
        region = update_region(program)
        anchor = next((n for n in program.graph.nodes if n.op == "call_function" and n not in region), None)
        late = _nodes_after(program, anchor, region)
        rewriter = Rewriter(program, self.name)
        for node in late:
            assert anchor is not None
            rewriter.move_before(node, anchor)
        return PassResult(program, bool(late), sum(map(is_mutation, late)))

    def ensures(self, program: GraphProgram) -> list[str]:
        """No mutation comes after the first row-dependent call."""
        region = update_region(program)
        anchor = next((n for n in program.graph.nodes if n.op == "call_function" and n not in region), None)
        nodes = list(program.graph.nodes)
        behind = nodes[nodes.index(anchor) :] if anchor is not None else []
        return [f"%{node.name} was not moved" for node in behind if is_mutation(node)]


def update_region(program: GraphProgram) -> set[Node]:
    """Calls that depend on no row and belong to the updates: they read state or a step input, or feed such a call."""
    inputs, names = program.placeholders(), set(program.state_names())
    state = [node for node in program.graph.find_nodes(op="get_attr") if node.target in names]
    of_step = [node for node in inputs if node.target not in ROWS]
    region = updates_of([*state, *of_step], rows=[node for node in inputs if node.target in ROWS])
    return {node for node in region if node.op == "call_function"}


def _nodes_after(program: GraphProgram, anchor: Node | None, region: set[Node]) -> list[Node]:
    """Region nodes after `anchor`, with the attribute reads they need, in graph order."""
    if anchor is None:
        return []
    nodes = list(program.graph.nodes)
    behind = nodes[nodes.index(anchor) :]
    late = {node for node in behind if node in region}
    needed = {source for node in late for source in node.all_input_nodes if source.op == "get_attr"}
    return [node for node in behind if node in late or node in needed]
