"""Derive the `evaluate` method: the losses of the present state, without the gradients and updates that follow.

`evaluate(tokens, label_pos, targets)` is what is left of the finished graph once only the losses are read. Weights and
state are those of `forward`; state that is inputs there is inputs here.
"""

from __future__ import annotations

from prgec.core.contract.names import HIDDEN_INPUT, ROW_INPUTS
from prgec.errors import InternalError
from prgec.passes.differentiate import outputs_of
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter, copy_returning, erase_dead
from prgec.passes.sites import state_inputs


def extract_evaluate(program: GraphProgram) -> GraphProgram:
    """Return the evaluating part of a program that computes gradients; it shares all tensors with `program`.

    Args:
        program: Result of the pass pipeline, with the inputs tokens, label_pos, targets, lr.

    Raises:
        InternalError: If the losses depend on anything but rows and state.
    """
    evaluate = copy_returning(program, outputs_of(program)[:1])
    # Updates change state that nobody reads any more.
    erase_dead(evaluate, updates_too=True)
    rewriter = Rewriter(evaluate, "extract-evaluate")
    kept = {*ROW_INPUTS, HIDDEN_INPUT, *(node.target for node in state_inputs(evaluate))}
    for node in evaluate.placeholders():
        if node.target not in kept:
            if node.users:
                raise InternalError(f"the losses depend on the input {node.target}")
            rewriter.erase(node)
    evaluate.finish()
    return evaluate
