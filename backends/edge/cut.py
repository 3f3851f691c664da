"""Cuts nodes out of an edge program into a program of their own, in the orders that ExecuTorch gives both.

ExecuTorch fuses, arranges, copies and checks whole graphs for each of these steps. The orders are kept, since a file
follows them byte for byte: nodes of the part in a stable topological order, its tensors before its inputs, and what
remains outside breadth first.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.delegate import executorch_call_delegate
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph, Node
from torch.fx.passes.utils.fuser_utils import topo_sort
from torch.utils._pytree import tree_flatten

from prgec.backends.edge.edit import sort_users
from prgec.errors import InternalError
from prgec.passes.lifted import LiftedProgram, Signature

# The kinds of what a part may own, in the order of its inputs.
_OWNED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A part of a program.

    Attributes:
        part: Program of its own.
        call: Node that takes its place, a call of a delegate that has no delegate yet.
    """

    part: LiftedProgram
    call: Node


def cut_out(program: LiftedProgram, nodes: Sequence[Node]) -> Cut:
    """Take nodes, with the inputs among them, out of a program.

    Args:
        program: Edge program; changed.
        nodes: Nodes in graph order, tensors that only they read among them.
    """
    ordered = topo_sort(list(nodes))
    inside = dict.fromkeys(ordered)
    given = dict.fromkeys(each for node in ordered for each in node.all_input_nodes if each not in inside)
    results = [node for node in ordered if any(user not in inside for user in node.users)]
    part = _part(program, ordered, list(given), results)
    call = _call(program, list(given), results)
    _remove(program, ordered)
    _sort_breadth_first(program.graph)
    return Cut(part=part, call=call)


def _part(program: LiftedProgram, ordered: list[Node], given: list[Node], results: list[Node]) -> LiftedProgram:
    spec_of = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    tensors = [node for node in ordered if node.op == "placeholder"]
    owned = {node: spec_of[node.name] for node in sorted(tensors, key=lambda n: _OWNED.index(spec_of[n.name].kind))}
    graph, copies = Graph(), dict[Node, Node]()
    for node in [*owned, *given]:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = {**node.meta}
    for node in ordered:
        if node.op != "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in results))
    inputs = [
        *(
            InputSpec(spec_of[node.name].kind, _argument(copies[node]), spec_of[node.name].target, True)
            for node in owned
        ),
        *(InputSpec(InputKind.USER_INPUT, _argument(copies[node]), None) for node in given),
    ]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(copies[node]), None) for node in results]
    names = [str(spec.target) for spec in owned.values()]
    return LiftedProgram(
        graph,
        Signature(inputs, outputs),
        {name: program.state_dict[name] for name in names},
        program.range_constraints,
        [_entry(len(given), len(results))],
        program.verifier,
    )


def _argument(node: Node) -> TensorArgument:
    return TensorArgument(node.name)


def _entry(num_inputs: int, num_outputs: int) -> ModuleCallEntry:
    in_spec = tree_flatten((tuple(range(num_inputs)), {}))[1]
    out_spec = tree_flatten(tuple(range(num_outputs)))[1]
    return ModuleCallEntry("", ModuleCallSignature(inputs=[], outputs=[], in_spec=in_spec, out_spec=out_spec))


def _call(program: LiftedProgram, given: list[Node], results: list[Node]) -> Node:
    """Call the part after the last of its results, and let every reader take its results from there."""
    graph = program.graph
    position = {node: number for number, node in enumerate(graph.nodes)}
    with graph.inserting_after(max(results, key=position.__getitem__)):
        call: Node = graph.call_function(executorch_call_delegate, tuple(given))
    call.meta["val"] = [node.meta["val"] for node in results]
    after = call.next
    for index, node in enumerate(results):
        with graph.inserting_before(after):
            result = graph.call_function(operator.getitem, (call, index))
        result.meta = {**node.meta}
        node.replace_all_uses_with(result)
    return call


def _remove(program: LiftedProgram, ordered: list[Node]) -> None:
    """Erase the nodes of the part, and forget the tensors that only it reads."""
    names = {node.name for node in ordered if node.op == "placeholder"}
    signature = program.graph_signature
    if any(spec.arg.name in names for spec in signature.output_specs):
        raise InternalError("a delegate would own state that the program writes")
    for node in reversed(ordered):
        program.graph.erase_node(node)
    gone = {spec.target for spec in signature.input_specs if spec.arg.name in names}
    signature.input_specs = [spec for spec in signature.input_specs if spec.arg.name not in names]
    for name in gone - {spec.target for spec in signature.input_specs}:
        program.state_dict.pop(name, None)


def _sort_breadth_first(graph: Graph) -> None:
    """Order nodes as `legalize_graph` of torch.fx does by a copy."""
    waiting = {node: 0 for node in graph.nodes}
    for node in graph.nodes:
        for user in node.users:
            waiting[user] += 1
    queue = deque(node for node, count in waiting.items() if not count)
    ordered: list[Node] = []
    while queue:
        node = queue.popleft()
        ordered.append(node)
        for user in node.users:
            waiting[user] -= 1
            if not waiting[user]:
                queue.appendleft(user) if _goes_first(user) else queue.append(user)
    if len(ordered) < len(waiting):
        raise InternalError("a delegate would need its own results")
    for node in ordered[:-1]:
        ordered[-1].prepend(node)
    sort_users(graph)


def _goes_first(node: Node) -> bool:
    return node.target in _FIRST


_FIRST: frozenset[Any] = frozenset(
    {
        *(operator.add, operator.mul, operator.sub, operator.floordiv, operator.truediv, operator.mod),
        *(operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne),
        torch.ops.aten.scalar_tensor.default,
    }
)
