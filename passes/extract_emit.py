"""Derive the `emit` method: what the blocks say at the label positions, and the logits there.

`emit(tokens, label_pos) -> acts f32[N, L, K, D], logits f32[N, K, V]` is the part of the finished graph that computes
these. It has neither state nor targets.
"""

from __future__ import annotations

from prgec.core.contract.names import TARGETS_INPUT
from prgec.errors import InternalError, PassError
from prgec.passes.differentiate import outputs_of
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter, copy_returning, erase_dead
from prgec.passes.shapes import shape_of


def extract_emit(program: GraphProgram) -> GraphProgram:
    """Return the emitting part of a program; it shares all tensors with `program`.

    Args:
        program: Result of a pass pipeline with emit-activations.

    Raises:
        PassError: If emit-activations found no blocks to emit from.
        InternalError: If activations depend on the targets.
    """
    outputs = outputs_of(program)
    if len(outputs) != 3:
        raise PassError(
            "emit-activations: found no blocks of one width, numbered from 0",
            hint="--method side needs a model whose blocks are modules such as model.layers.0",
        )
    emit = copy_returning(program, outputs[1:])
    erase_dead(emit)
    rewriter = Rewriter(emit, "extract-emit")
    targets = emit.placeholder(TARGETS_INPUT)
    if targets is not None:
        if targets.users:
            raise InternalError("activations depend on the targets")
        rewriter.erase(targets)
    emit.finish()
    return emit


def emitted_sizes(emit: GraphProgram) -> tuple[int, int]:
    """Number of blocks and their width, (L, D), of a program from `extract_emit`."""
    _, num_blocks, _, width = shape_of(outputs_of(emit)[0])
    return int(num_blocks), int(width)
