"""Return every master after the losses, for runtimes whose delegates keep state where no host can read it.

Before:
    %9: f32[r, O] = aten.sub(@site.lora_B, %8)
    %10: f32[r, O] = aten.copy_(@site.lora_B, %9)
    ...
    return %loss
After:
    %9: f32[r, O] = aten.sub(@site.lora_B, %8)
    %10: f32[r, O] = aten.copy_(@site.lora_B, %9)
    ...
    return %loss, %9

Sites come in the order of their noise index. The result is the value a call stores: the state after the update of the
previous step, or after the call's own update where it computes a gradient.

Requires: seeded state, written by insert-self-update or decompose-optimizer and not by a kernel. Ensures: one output
for each site.
Numerics: EXACT.
Why: a CUDA delegate owns its mutable buffers and the ExecuTorch Python runtime has no way in; an adapter must come out
of the program somehow, and a few megabytes a step cost nothing beside a forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx.node import Argument

from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier
from prgec.passes.program import GraphProgram, is_mutation
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import shape_of
from prgec.passes.sites import writes

aten = torch.ops.aten


@dataclass(frozen=True)
class ReturnState(Pass):
    """Append the updated masters to the outputs."""

    name: ClassVar[str] = "return-state"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset(
        {"insert-self-update", "hoist-updates", "fuse-update", "insert-optimizer", "decompose-optimizer"}
    )
    is_legality: ClassVar[bool] = True

    def requires(self, program: GraphProgram) -> Sequence[str]:
        """State is one master a site, and each update is a value of the graph."""
        reasons = []
        for node in program.graph.nodes:
            if is_mutation(node) and node.target is not aten.copy_.default:
                reasons.append(f"%{node.name} updates its state inside {node.target}; leave out fuse-update")
                break
        if any(len(shape_of(b)) != 2 for _, b in writes(program)):
            reasons.append("the state is dual; only a single master a site can be returned")
        return reasons

    def run(self, program: GraphProgram) -> PassResult:
        """Extend the output node."""
        returned = _returned(program)
        missing = [write.args[1] for write, _ in writes(program) if write.args[1] not in returned]
        Rewriter(program, self.name).return_values([*returned, *missing])
        return PassResult(program, bool(missing), len(missing))

    def ensures(self, program: GraphProgram) -> list[str]:
        """Every master comes out."""
        returned = _returned(program)
        return [f"{b} is not returned" for write, b in writes(program) if write.args[1] not in returned]


def _returned(program: GraphProgram) -> Sequence[Argument]:
    returned = program.graph.output_node().args[0]
    assert isinstance(returned, (list, tuple))
    return returned
