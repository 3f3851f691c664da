"""Split a program whose prefix is shared into two methods: `prefix` and the rest of `forward`.

`prefix(tokens i64[B, T]) -> f32[B, T, D]` computes what does not change while the program trains; `forward` takes
its result as one more input, `hidden`. A driver that keeps results of `prefix` never computes them again.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from prgec.core.contract.names import HIDDEN_INPUT
from prgec.errors import InternalError
from prgec.passes.program import TOKENS, GraphProgram
from prgec.passes.rewrite import Rewriter, copy_returning, erase_dead
from prgec.passes.share_prefix import CUT_META


def extract_prefix(program: GraphProgram) -> GraphProgram:
    """Take the prefix out of `program` and return it as a program of its own.

    Args:
        program: Result of a pipeline with share-prefix; gets the input `hidden` f32[B, T, D].

    Raises:
        InternalError: If the program has no shared prefix.
    """
    view = find_shared_prefix(program)
    if view is None:
        raise InternalError("the program has no shared prefix")
    hidden = view.args[0]
    assert isinstance(hidden, Node)
    prefix = _copy_up_to(program, hidden)
    rewriter = Rewriter(program, "extract-prefix")
    entry = rewriter.input_like(HIDDEN_INPUT, hidden)
    rewriter.feed(view, hidden, entry)
    program.finish()
    return prefix


def find_shared_prefix(program: GraphProgram) -> Node | None:
    """The first use of the result of a shared prefix; None where no prefix is shared."""
    return next((node for node in program.graph.nodes if node.meta.get(CUT_META)), None)


def _copy_up_to(program: GraphProgram, hidden: Node) -> GraphProgram:
    prefix = copy_returning(program, [hidden])
    # The prefix has no state.
    erase_dead(prefix, updates_too=True)
    prefix.finish()
    tokens = prefix.placeholder(TOKENS)
    assert tokens is not None
    rows = next(user for user in tokens.users if user.target is torch.ops.aten.slice.Tensor)
    rewriter = Rewriter(prefix, "extract-prefix")
    rewriter.take_over(tokens, rows)
    for node in prefix.placeholders():
        if node is not tokens:
            rewriter.erase(node)
    prefix.finish()
    return prefix
