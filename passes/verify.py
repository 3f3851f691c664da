"""The written, executable rules of a valid graph between passes.

1. Every node but the output has a value (shape and dtype).
2. Every call is an ATen or prge op, `getitem`, or arithmetic on sizes.
3. Every attribute read exists and is a tensor.
4. State is f32 and written only by `copy_` or a prge op.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator

import torch
from torch.fx import Node

from prgec.errors import InternalError
from prgec.passes.program import GraphProgram, is_mutation, written_by

_NAMESPACES = frozenset({"aten", "prge", "torchao", "quantized_decomposed"})
_SIZE_ARITHMETIC = frozenset(
    {
        operator.getitem,
        operator.add,
        operator.sub,
        operator.mul,
        operator.floordiv,
        operator.mod,
        operator.neg,
        operator.eq,
        operator.ne,
        operator.lt,
        operator.le,
        operator.gt,
        operator.ge,
        math.floor,
        math.ceil,
        torch.sym_max,
        torch.sym_min,
        torch.sym_int,
        torch.sym_not,
    }
)


def verify(program: GraphProgram) -> list[str]:
    """Return every broken rule, each naming its node; empty for a valid graph."""
    broken: list[str] = []
    for node in program.graph.nodes:
        broken.extend(_check_node(program, node))
    return broken


def _check_node(program: GraphProgram, node: Node) -> Iterator[str]:
    if node.op in {"call_module", "call_method"}:
        yield f"%{node.name} is a {node.op}; only functions are allowed"
        return
    if node.op not in {"output"} and "val" not in node.meta:
        yield f"%{node.name} has no value"
    if node.op == "get_attr":
        yield from _check_attribute(program, node)
    if node.op == "call_function":
        yield from _check_call(program, node)


def _check_attribute(program: GraphProgram, node: Node) -> Iterator[str]:
    try:
        program.attribute(node)
    except (AttributeError, InternalError):
        yield f"%{node.name} reads {node.target}, which does not exist"


def _check_call(program: GraphProgram, node: Node) -> Iterator[str]:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace not in _NAMESPACES:
            yield f"%{node.name} calls {target}, outside the namespaces {sorted(_NAMESPACES)}"
        elif is_mutation(node):
            yield from _check_mutation(program, node)
    elif target not in _SIZE_ARITHMETIC:
        yield f"%{node.name} calls {target}, which is neither an ATen nor a prge op"


def _check_mutation(program: GraphProgram, node: Node) -> Iterator[str]:
    for written in written_by(node):
        if written.op != "get_attr":
            yield f"%{node.name} writes to something that is not state"
            continue
        if node.target is not torch.ops.aten.copy_.default and getattr(node.target, "namespace", "") != "prge":
            yield f"%{node.name} writes state with {node.target}; expected copy_ or a prge op"
        if program.attribute(written).dtype != torch.float32:
            yield f"%{node.name} writes {written.target}, which is not f32"
