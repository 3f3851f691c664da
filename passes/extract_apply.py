"""Derive the `apply` method: the update a training step performs on entry, without any forward.

`apply(g, lr, seed, step)` is what is left of the finished graph once the forward after the updates is dead and eps is
zero. The very same nodes run in both methods, so replaying a journal with `apply` gives the same bits.
"""

from __future__ import annotations

import torch

from prgec.core.contract.names import APPLY_INPUTS
from prgec.errors import InternalError
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter, copy_returning

_ZERO = "prge_zero"


def extract_apply(program: GraphProgram) -> GraphProgram:
    """Return the update part of a self-updating program; it shares all tensors with `program`.

    Args:
        program: Result of the pass pipeline, with inputs tokens, label_pos, targets, g, lr, eps, seed, step.

    Raises:
        InternalError: If the updates depend on a row.
    """
    apply = copy_returning(program, ())
    rewriter = Rewriter(apply, "extract-apply")
    _zero_eps(apply, rewriter)
    apply.finish()
    for node in apply.placeholders():
        if node.target not in APPLY_INPUTS:
            if node.users:
                raise InternalError(f"the updates depend on the input {node.target}")
            rewriter.erase(node)
    apply.finish()
    return apply


def _zero_eps(apply: GraphProgram, rewriter: Rewriter) -> None:
    eps = apply.placeholder("eps")
    if eps is None:
        raise InternalError("the graph does not update itself; there is nothing to apply")
    first = next(node for node in apply.graph.nodes if node.op != "placeholder")
    with rewriter.before(first):
        zero = rewriter.constant(_ZERO, torch.zeros(()))
    rewriter.redirect(eps, zero)
