"""A lifted ATen graph as an ExecuTorch edge program, by edits in place.

Goes node by node where `torch.export`'s decompositions and ExecuTorch's passes trace a graph about ten times:
core ATen form (`core_form`), functional writes (`writes`), copies for views, tensors for numbers, one dtype an op, and
the names of the edge dialect.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection

import torch
from executorch.exir import EdgeCompileConfig
from executorch.exir.passes.replace_aten_with_edge_pass import aten_to_edge, should_lower_to_edge
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx import Node
from torch.fx.node import Argument

from prgec.backends.edge.core_form import to_core_form
from prgec.backends.edge.edit import SOURCE, Edit
from prgec.backends.edge.operands import match_operands
from prgec.backends.edge.values import Values
from prgec.backends.edge.writes import to_functional
from prgec.passes.lifted import LiftedProgram, Signature, results_of

# Our own ops and int64 arithmetic on sizes are not part of the core ATen opset that the IR check knows.
EDGE_CONFIG = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
_HANDLE = "debug_handle"


def to_edge(program: ExportedProgram, kept: Collection[OpOverload], keeps: Callable[[Node], bool]) -> LiftedProgram:
    """Return the edge program of a method.

    Args:
        program: Method in the dialect of `torch.export`, writes in place; its graph is consumed.
        kept: Ops that a delegate takes whole.
        keeps: Whether it takes a call of one of these.

    Raises:
        BackendError: For an op that the table does not know.
    """
    graph = program.graph
    edit = Edit(graph, Values(_mode(program)))
    for number, node in enumerate(graph.nodes):
        # A part of a result is traced with the call that returns it.
        node.meta[SOURCE] = node.args[0].meta[SOURCE] if node.target is operator.getitem else number
    to_core_form(edit, kept, keeps)
    newest = to_functional(edit)
    _return_writes(program, newest)
    graph.eliminate_dead_code()
    constants = match_operands(edit, _first_input(program), len(program.graph_signature.buffers))
    for node in graph.nodes:
        _to_dialect(node, edit.values)
    signature, tensors = _signature(program, edit, newest, constants)
    _number(graph)
    return LiftedProgram(
        graph,
        signature,
        tensors,
        program.range_constraints,
        program.module_call_graph,
        EXIREdgeDialectVerifier(edge_compile_config=EDGE_CONFIG, class_only=True),
    )


def _mode(program: ExportedProgram) -> torch._subclasses.FakeTensorMode:
    mode = detect_fake_mode([node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"])
    assert mode is not None
    return mode


def _return_writes(program: ExportedProgram, newest: dict[Node, Node]) -> None:
    """Let the graph return the new values of state before its own results."""
    results = results_of(program.graph)
    program.graph.output_node().args = ((*newest.values(), *(newest.get(each, each) for each in results)),)


def _first_input(program: ExportedProgram) -> Node:
    """The first input that a call passes, or the first call where there is none."""
    given = set(program.graph_signature.user_inputs)
    nodes: list[Node] = list(program.graph.nodes)
    found = next((node for node in nodes if node.op == "placeholder" and node.name in given), None)
    return found or next(node for node in nodes if node.op != "placeholder")


def _to_dialect(node: Node, values: Values) -> None:
    """Give a call its edge op, which copies where ATen has a view, and a contiguous value."""
    if node.op == "placeholder":
        node.meta["val"] = values.contiguous(node.meta["val"])
    if node.op != "call_function":
        return
    op = node.target
    if isinstance(op, OpOverload):
        node.args = _shortest(op, node.args)
        if op.is_view:
            op = _copying(op)
        node.target = aten_to_edge(op) if should_lower_to_edge(op) else op
    node.meta["val"] = values.contiguous(node.meta["val"])


def _shortest(op: OpOverload, args: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Arguments as a trace writes them: sizes in lists, and no default at the end."""
    given = [list(each) if isinstance(each, tuple) else each for each in args]
    for declared in reversed(op._schema.arguments[: len(given)]):
        if not declared.has_default_value() or not _is_equal(given[-1], declared.default_value):
            break
        given.pop()
    return tuple(given)


def _is_equal(value: object, default: object) -> bool:
    return type(value) is type(default) and value == default


def _copying(op: OpOverload) -> OpOverload:
    namespace = getattr(torch.ops, op.namespace)
    copying: OpOverload = getattr(getattr(namespace, f"{op._opname}_copy"), op._overloadname)
    return copying


def _signature(
    program: ExportedProgram, edit: Edit, newest: dict[Node, Node], constants: dict[str, torch.Tensor]
) -> tuple[Signature, dict[str, torch.Tensor]]:
    """Signature with the constants that numbers became, and the tensors by name."""
    inputs = list(program.graph_signature.input_specs)
    first_given = next((i for i, spec in enumerate(inputs) if spec.kind is InputKind.USER_INPUT), len(inputs))
    inputs[first_given:first_given] = [
        InputSpec(InputKind.BUFFER, TensorArgument(name), name, True) for name in constants
    ]
    name_of = {spec.arg.name: spec.target for spec in inputs}
    results = results_of(edit.graph)
    written = [name_of[root.name] for root in newest]
    outputs = [
        OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(node.name), target)
        for node, target in zip(results, written, strict=False)
    ]
    outputs += [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results[len(written) :]]
    tensors = {
        name: tensor if tensor.is_contiguous() else tensor.contiguous()
        for name, tensor in {**program.state_dict, **program.constants, **constants}.items()
    }
    return Signature(inputs, outputs), tensors


def _number(graph: torch.fx.Graph) -> None:
    """Number the sources of nodes in order: ExecuTorch's debug handles, which delegates write into their bytes."""
    handles: dict[int, int] = {}
    for node in graph.nodes:
        source = node.meta.pop(SOURCE, None)
        if node.op == "call_function":
            node.meta[_HANDLE] = handles.setdefault(source, len(handles) + 1)
