"""Dependences of an edge program's values: on rows, inputs of a step, state, or the loss."""

from __future__ import annotations

from collections.abc import Set

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from prgec.core.contract.names import STATE_SUFFIX, STEP_INPUTS, TARGETS_INPUT
from prgec.passes.dependence import ROWS, downstream, updates_of, upstream

LOG_SOFTMAX = exir_ops.edge.aten._log_softmax.default
STATE = "state"
_STEP = frozenset({*STEP_INPUTS, STATE})


def row_nodes(program: ExportedProgram) -> set[Node]:
    """Nodes that depend on a row."""
    return downstream(_inputs(program, ROWS))


def target_nodes(program: ExportedProgram) -> set[Node]:
    """Nodes that depend on targets, and on no other input of a row."""
    targets = frozenset({TARGETS_INPUT})
    return downstream(_inputs(program, targets)) - downstream(_inputs(program, ROWS - targets))


def update_nodes(program: ExportedProgram) -> set[Node]:
    """Nodes that compute trained weights, from state or from the inputs of a step, and no activation.

    Where gradients are computed the update comes last and depends on rows. Values computed from state alone are then
    reshaped weights, which belong to the forward. So do copies of B that are made from a perturbation.
    """
    made_of_step = updates_of(_inputs(program, frozenset(STEP_INPUTS)), _inputs(program, ROWS))
    if all(node.op == "placeholder" for node in made_of_step):
        return set()
    return updates_of(_inputs(program, _STEP), _inputs(program, ROWS)) - _copies(program)


def _copies(program: ExportedProgram) -> set[Node]:
    """Nodes computed from a perturbation, by any op."""
    calls = [call for call in _mutations(program) if call.args[0] is torch.ops.prge.perturbation.default]
    perturbations = {node for call in calls for node in call.users if node.args[1] == 0}
    return downstream(perturbations) - perturbations


def loss_nodes(program: ExportedProgram) -> set[Node]:
    """The log-softmax of the logits and everything that depends on it."""
    return downstream(node for node in program.graph.nodes if node.target is LOG_SOFTMAX)


def forward_nodes(program: ExportedProgram) -> set[Node]:
    """Nodes that compute logits and gradients, or the results of a method without a loss, without the updates.

    Values made of targets alone stay out: they are integers to compare.
    """
    results = [node for node in program.graph.nodes if node.target is LOG_SOFTMAX]
    gradients = gradient_nodes(program)
    ends = results or ([] if gradients else [program.graph.output_node()])
    inside = upstream([*(source for end in ends for source in end.all_input_nodes), *gradients])
    return inside - loss_nodes(program) - update_nodes(program) - target_nodes(program)


def untag_state(program: ExportedProgram) -> None:
    """Keep B out of delegates that only read it: the method that evaluates shares it with the one that trains."""
    buffers = program.graph_signature.inputs_to_buffers
    for node in program.graph.nodes:
        if buffers.get(node.name, "").endswith(STATE_SUFFIX):
            node.meta.pop("delegation_tag", None)


def gradient_nodes(program: ExportedProgram) -> list[Node]:
    """Nodes that updates at the end of the graph read as gradients; empty where the host takes the steps."""
    updates = [call for call in _mutations(program) if _is_ours(call.args[0])]
    computed = downstream(_inputs(program, ROWS)) - loss_nodes(program) - downstream(updates)
    read = dict.fromkeys(node for call in updates for node in call.all_input_nodes)
    return [node for node in read if node in computed and node.op == "call_function"]


def _mutations(program: ExportedProgram) -> list[Node]:
    """Calls that change an argument, as the tracer wraps them."""
    wrapped = torch.ops.higher_order.auto_functionalized_v2
    found: list[Node] = program.graph.find_nodes(op="call_function", target=wrapped)
    return found


def _is_ours(op: object) -> bool:
    return isinstance(op, torch._ops.OpOverload) and op.namespace == "prge"


def is_loss(node: Node, program: ExportedProgram) -> bool:
    """Whether a node is after the log-softmax or works on targets only; constants for such nodes count."""
    if any(each.target is LOG_SOFTMAX for each in upstream([node])):
        return True
    sources = sources_of(node, program)
    if sources:
        return sources == {"targets"}
    readers = [user for user in node.users if user.op == "call_function"]
    return bool(readers) and all(is_loss(user, program) for user in readers)


def is_update(sources: Set[str]) -> bool:
    """Whether what depends on `sources` is one of `update_nodes`."""
    return bool(sources & _STEP) and not sources & ROWS


def sources_of(node: Node, program: ExportedProgram) -> set[str]:
    """Names of the inputs a node depends on; `STATE` stands for all buffers that calls change."""
    names = _input_names(program)
    return {names[each.name] for each in upstream([node]) if each.name in names}


def _inputs(program: ExportedProgram, wanted: Set[str]) -> list[Node]:
    names = _input_names(program)
    return [node for node in program.graph.nodes if node.op == "placeholder" and names.get(node.name) in wanted]


def _input_names(program: ExportedProgram) -> dict[str, str]:
    """Placeholder -> name of the input; `STATE` for the buffers that calls change. Weights are left out."""
    signature = program.graph_signature
    state = set(signature.buffers_to_mutate.values())
    names = {spec.arg.name: STATE for spec in signature.input_specs if spec.target in state}
    return names | {each.arg.name: each.arg.name for each in signature.input_specs if each.kind == InputKind.USER_INPUT}
