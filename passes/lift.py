"""A finished graph as an exported program: attributes become inputs, in place of a trace of the whole graph.

Before:
    %0: f32[O, D] = @lm_head.weight
    %1: f32[N, K, O] = aten.linear(%x, %0)
After:
    placeholder p_lm_head_weight
    %1: f32[N, K, O] = aten.linear(%x, p_lm_head_weight)

Names and the order of the inputs are those that torch.export gives: parameters, buffers, then what a call passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._export.verifier import TrainingIRVerifier
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph, Node
from torch.utils._pytree import tree_flatten

from prgec.passes.lifted import LiftedProgram, Signature, results_of
from prgec.passes.program import GraphProgram

_SIZE = torch.ops.aten.sym_size.int


def lift(program: GraphProgram) -> LiftedProgram:
    """Return the program with its tensors lifted into a signature; they are shared, the graph is a copy.

    The graph writes state in place, as the passes left it: the dialect is that of `torch.export` before functions are
    made of it.

    Args:
        program: Finished program; not changed.
    """
    graph, inputs = Graph(), {}
    copies: dict[Node, Node] = {}
    tensors, mode = dict(_used_tensors(program)), program.fake_mode
    for name, (kind, tensor) in tensors.items():
        node = graph.placeholder(f"{'p' if kind is InputKind.PARAMETER else 'b'}_{name.lower().replace('.', '_')}")
        node.meta["val"] = mode.from_tensor(tensor, static_shapes=True)
        inputs[name] = node
    _copy_calls(program.graph, graph, inputs, copies)
    returned = tuple(copies[value] for value in results_of(program.graph))
    graph.output(returned)
    signature = Signature(
        [
            *(
                InputSpec(kind, TensorArgument(inputs[name].name), name, None if kind is InputKind.PARAMETER else True)
                for name, (kind, _) in tensors.items()
            ),
            *(
                InputSpec(InputKind.USER_INPUT, TensorArgument(copies[node].name), None)
                for node in program.placeholders()
            ),
        ],
        [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(value.name), None) for value in returned],
    )
    return LiftedProgram(
        graph,
        signature,
        {name: tensor for name, (_, tensor) in tensors.items()},
        _ranges(program),
        [_call(program, len(returned))],
        TrainingIRVerifier,
    )


def _used_tensors(program: GraphProgram) -> Iterator[tuple[str, tuple[InputKind, torch.Tensor]]]:
    """Yield what the graph reads, parameters first."""
    used = {str(node.target) for node in program.graph.nodes if node.op == "get_attr"}
    parameters = {name: each for name, each in program.module.named_parameters(remove_duplicate=False) if name in used}
    buffers = {name: each for name, each in program.module.named_buffers(remove_duplicate=False) if name in used}
    for name in parameters:
        yield name, (InputKind.PARAMETER, parameters[name])
    for name in _by_modules([*parameters, *buffers]):
        if name in buffers:
            yield name, (InputKind.BUFFER, buffers[name])


def _by_modules(names: Sequence[str]) -> Iterator[str]:
    """Yield names in the order of modules that are made as the names come: torch.export unlifts and lifts again."""
    children: dict[str, list[str]] = {}
    for name in names:
        owner, _, leaf = name.partition(".")
        children.setdefault(owner if leaf else "", []).append(leaf or name)
    yield from children.pop("", [])
    for owner, leaves in children.items():
        yield from (f"{owner}.{leaf}" for leaf in _by_modules(leaves))


def _copy_calls(source: Graph, target: Graph, inputs: dict[str, Node], copies: dict[Node, Node]) -> None:
    """Copy all nodes but the output; reads of attributes become the inputs of their names."""
    given = [node for node in source.nodes if node.op == "placeholder"]
    for node in given:
        copies[node] = target.node_copy(node)
    _copy_sizes(source, target, given, copies)
    for node in source.nodes:
        if node.op == "get_attr":
            copies[node] = inputs[str(node.target)]
        elif node.op != "output" and node not in copies:
            copies[node] = target.node_copy(node, copies.__getitem__)


def _copy_sizes(source: Graph, target: Graph, given: Sequence[Node], copies: dict[Node, Node]) -> None:
    """Ask for each size that varies once, of the first input that has it: a trace does so before anything else."""
    asking: dict[Any, list[Node]] = {}
    for node in source.find_nodes(op="call_function", target=_SIZE):
        if node.args[0] in given:
            asking.setdefault(node.meta["val"].node.expr, []).append(node)
    for entry in given:
        for dim, size in enumerate(entry.meta["val"].shape):
            found = [] if isinstance(size, int) else asking.pop(size.node.expr, [])
            if found:
                first = target.call_function(_SIZE, (copies[entry], dim))
                first.meta = {**found[0].meta}
                copies.update(dict.fromkeys(found, first))


def _ranges(program: GraphProgram) -> dict[Any, Any]:
    """Range of every symbol that an input has."""
    ranges: dict[Any, Any] = {}
    for node in program.placeholders():
        for size in node.meta["val"].shape:
            if not isinstance(size, int):
                for symbol in size.node.expr.free_symbols:
                    ranges[symbol] = size.node.shape_env.bound_sympy(symbol)
    return ranges


def _call(program: GraphProgram, num_outputs: int) -> ModuleCallEntry:
    names = [str(node.target) for node in program.placeholders()]
    return ModuleCallEntry(
        "",
        ModuleCallSignature(
            inputs=[],
            outputs=[],
            in_spec=tree_flatten((tuple(names), {}))[1],
            out_spec=tree_flatten(tuple(range(num_outputs)))[1],
        ),
    )
