"""What the values of an edge program depend on: rows, inputs of a step, or state."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from prgec.backends.loss_tail import LOG_SOFTMAX
from prgec.contract.names import HIDDEN_INPUT, STEP_INPUTS

ROWS = frozenset({"tokens", "label_pos", HIDDEN_INPUT})
STATE = "state"


def is_loss(node: Node, program: ExportedProgram) -> bool:
    """Whether a node is behind the log-softmax or works on targets only, as constants for such nodes do."""
    if LOG_SOFTMAX in {each.target for each in with_ancestors(node)}:
        return True
    sources = sources_of(node, program)
    if sources:
        return sources == {"targets"}
    readers = [user for user in node.users if user.op == "call_function"]
    return bool(readers) and all(is_loss(user, program) for user in readers)


def is_update(node: Node, program: ExportedProgram) -> bool:
    """Whether a node computes trained weights, from state or from the inputs of a step, and no activation."""
    sources = sources_of(node, program)
    return bool(sources & {*STEP_INPUTS, STATE}) and not sources & ROWS


def sources_of(node: Node, program: ExportedProgram) -> set[str]:
    """Names of the inputs a node depends on; `STATE` stands for all buffers that calls change."""
    signature = program.graph_signature
    kinds = {spec.arg.name: spec for spec in signature.input_specs}
    state = set(signature.buffers_to_mutate.values())
    specs = [kinds[each.name] for each in with_ancestors(node) if each.name in kinds]
    inputs = {spec.arg.name for spec in specs if spec.kind == InputKind.USER_INPUT}
    return inputs | {STATE for spec in specs if spec.target in state}


def with_ancestors(node: Node) -> set[Node]:
    """A node and everything its values depend on; what it reads sizes of is none of that."""
    seen: set[Node] = set()
    pending = [node]
    while pending:
        each = pending.pop()
        if each not in seen and each.target is not torch.ops.aten.sym_size.int:
            seen.add(each)
            pending += each.all_input_nodes
    return seen
