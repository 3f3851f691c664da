"""Have a classifier's head read the label position, where it reads the first one.

Before:
    %1: f32[N, D] = aten.select(%h, 1, 0)
After:
    %0: i64[N, 1, D] = aten.expand(aten.unsqueeze(label_pos, -1), [-1, -1, D])
    %1: f32[N, 1, D] = aten.gather(%h, 1, %0)
    %2: f32[N, D] = aten.view(%1, [N, D])

Encoders classify by what they say at their first token, and rows of such a program name it: label_pos is 0. No delegate
selects a row, while a gather of label positions becomes a product (label-gather-to-bmm). No row of the pass table: it
belongs to the export, and a graph without it is none that the passes know.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from prgec.passes.program import TOKENS, GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import is_same_shape, is_tensor, shape_of

aten = torch.ops.aten
LABEL_POSITIONS = "label_pos"


def read_at_label(program: GraphProgram) -> int:
    """Rewrite every selection of the first token; return how many there were."""
    rewriter = Rewriter(program, "read-at-label")
    tokens, label_pos = program.placeholder(TOKENS), program.placeholder(LABEL_POSITIONS)
    assert tokens is not None and label_pos is not None
    found = [node for node in program.calls(aten.select.int) if _takes_first_token(node, tokens)]
    for node in found:
        hidden = node.args[0]
        assert isinstance(hidden, Node)
        num_rows, _, width = shape_of(hidden)
        with rewriter.before(node):
            index = rewriter.call(
                aten.expand.default, rewriter.call(aten.unsqueeze.default, label_pos, -1), [-1, -1, width]
            )
            row = rewriter.call(aten.gather.default, hidden, 1, index)
            new = rewriter.call(aten.view.default, row, [num_rows, width])
        rewriter.replace(node, new)
    program.finish()
    return len(found)


def _takes_first_token(node: Node, tokens: Node) -> bool:
    source = node.args[0]
    if not (isinstance(source, Node) and is_tensor(source) and tuple(node.args[1:]) == (1, 0)):
        return False
    return len(shape_of(source)) == 3 and is_same_shape(shape_of(source)[:2], shape_of(tokens))
