"""The text form of a graph: what goldens compare and `dump_to` writes.

Values are renumbered, attributes appear by name, every value has dtype and shape, a symbolic T is printed as `T`.
Nothing in it depends on file paths, node names, or the machine.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.fx import Node

from prgec.passes.program import GraphProgram

_DTYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}


def print_program(program: GraphProgram) -> str:
    """Return the graph as text, one value a line."""
    names: dict[Node, str] = {}
    types = _Types()
    num_values = 0
    lines = ["graph(" + ", ".join(f"{node.target}: {types.of(node)}" for node in program.placeholders()) + "):"]
    for node in program.graph.nodes:
        if node.op == "placeholder":
            names[node] = str(node.target)
        elif node.op == "get_attr":
            names[node] = f"@{node.target}"
        elif node.op == "output":
            lines.append(("  return " + ", ".join(_argument(a, names) for a in node.args[0])).rstrip())
        else:
            names[node] = f"%{num_values}"
            num_values += 1
            lines.append(f"  {names[node]}: {types.of(node)} = {_call(node, names)}")
    return "\n".join(lines) + "\n"


def op_counts(program: GraphProgram) -> dict[str, int]:
    """Number of calls of each op, by short name."""
    counts: dict[str, int] = {}
    for node in program.graph.nodes:
        if node.op == "call_function":
            name = op_name(node)
            counts[name] = counts.get(name, 0) + 1
    return counts


def op_name(node: Node) -> str:
    """Short name of a call: `aten.linear`, `prge.randn`, `aten.add.Scalar`, `getitem`."""
    return _target_name(node.target)


@functools.cache
def _target_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        packet = f"{target.namespace}.{target._opname}"
        return packet if target._overloadname in {"default", "Tensor"} else f"{packet}.{target._overloadname}"
    return getattr(target, "__name__", str(target))


def _call(node: Node, names: dict[Node, str]) -> str:
    parts = [_argument(a, names) for a in node.args]
    parts += [f"{key}={_argument(a, names)}" for key, a in node.kwargs.items() if key not in {"device", "pin_memory"}]
    return f"{op_name(node)}({', '.join(parts)})"


def _argument(value: Any, names: dict[Node, str]) -> str:
    if isinstance(value, Node):
        return names[value]
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_argument(v, names) for v in value) + "]"
    if isinstance(value, torch.dtype):
        return _DTYPES.get(value, str(value))
    # Open ends of slices are int64's maximum; the number itself says nothing.
    return "end" if value == 9223372036854775807 and isinstance(value, int) else str(value)


class _Types:
    """Types of the values of one graph, each written once: equal calls share one value."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, node: Node) -> str:
        value = node.meta.get("val")
        found = self._known.get(id(value))
        if found is None:
            found = self._known[id(value)] = _value_type(value)
        return found


def _value_type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{_DTYPES.get(value.dtype, str(value.dtype))}[{', '.join(_size(s) for s in value.shape)}]"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(_value_type(v) for v in value) + ")"
    return "size" if isinstance(value, int | torch.SymInt) else type(value).__name__


def _size(size: int | torch.SymInt) -> str:
    if isinstance(size, int):
        return str(size)
    return _expression(size.node.expr)


# A graph is printed around every pass and has few sizes; sympy takes half of a pipeline's time for them otherwise.
@functools.lru_cache(maxsize=1024)
def _expression(expression: Any) -> str:
    return str(expression.subs({symbol: "T" for symbol in expression.free_symbols})).replace(" ", "")
