"""Derive the `next_tokens` method: what the model would say at each label position, instead of what saying it costs.

`next_tokens` takes the inputs of `forward` without `targets` and returns i64[N, K], the most likely token after each
label position. It is the finished forward up to the logits, state and weights included, so that generation runs the
very model that is trained.
"""

from __future__ import annotations

import torch

from prgec.core.contract.names import TARGETS_INPUT
from prgec.errors import InternalError
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter, copy_returning, erase_dead

aten = torch.ops.aten


def extract_next_tokens(program: GraphProgram) -> GraphProgram:
    """Return the generating part of a program; it shares all tensors with `program`.

    Args:
        program: Result of the pass pipeline, with or without `hidden`.

    Raises:
        InternalError: If the graph has no logits before its loss.
    """
    found = list(program.calls(aten.log_softmax.int, aten._log_softmax.default))
    if not found:
        raise InternalError("the graph has no log_softmax, so its logits cannot be found")
    generator = copy_returning(program, found[-1:])
    rewriter = Rewriter(generator, "extract-next-tokens")
    end = generator.graph.output_node()
    (scores,) = end.all_input_nodes
    with rewriter.before(end):
        tokens_NK = rewriter.call(aten.argmax.default, scores.args[0], -1)
    rewriter.return_values([tokens_NK])
    erase_dead(generator)
    for node in generator.placeholders():
        if node.target == TARGETS_INPUT:
            rewriter.erase(node)
    generator.finish()
    return generator
