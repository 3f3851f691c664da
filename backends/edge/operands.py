"""Operands as ExecuTorch's kernels take them: tensors where a number stood, and one dtype for arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes
from torch.fx import Node

from prgec.backends.edge.edit import Edit

aten = torch.ops.aten

# ExecuTorch's kernels of these want operands of one dtype (exir/passes/remove_mixed_type_operators.py).
_ONE_DTYPE = {
    aten.add.Tensor: Kind.DEFAULT,
    aten.mul.Tensor: Kind.DEFAULT,
    aten.sub.Tensor: Kind.DEFAULT,
    aten.div.Tensor: Kind.INT_TO_FLOAT,
    aten.minimum.default: Kind.DEFAULT,
}
_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)


def match_operands(edit: Edit, first_input: Node, num_buffers: int) -> dict[str, torch.Tensor]:
    """Edit operands; return the tensors that numbers became, by the names of their inputs, in order.

    Copies that change nothing, such as a slice of everything, go on the way.

    Args:
        edit: Functional graph in core ATen form.
        first_input: Node before which the constants are placed.
        num_buffers: Buffers of the program, after which ExecuTorch numbers the constants.
    """
    constants: dict[str, torch.Tensor] = {}
    for node in list(edit.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        if _is_no_op(node):
            source = node.args[0]
            assert isinstance(source, Node)
            edit.replace(node, source)
            continue
        for index, (value, declared) in enumerate(zip(node.args, node.target._schema.arguments, strict=False)):
            if isinstance(declared.type, torch.TensorType) and isinstance(value, int | float | bool):
                name = f"_lifted_tensor_constant{num_buffers + len(constants)}"
                constants[name] = torch.tensor(value)
                node.update_arg(index, _input(edit, first_input, name, constants[name]))
        if node.target in _ONE_DTYPE:
            _promote(edit, node)
    return constants


def _input(edit: Edit, before: Node, name: str, tensor: torch.Tensor) -> Node:
    with edit.graph.inserting_before(before):
        node = edit.graph.placeholder(name)
    node.meta["val"] = edit.values.of(tensor)
    return node


def _is_no_op(node: Node) -> bool:
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or node.target not in (aten.slice.Tensor, aten._to_copy.default):
        return False
    before, after = source.meta["val"], node.meta["val"]
    sizes = (*before.shape, *after.shape)
    is_fixed = all(isinstance(size, int) for size in sizes)
    return bool(is_fixed and before.shape == after.shape and before.dtype == after.dtype)


def _promote(edit: Edit, node: Node) -> None:
    values: list[Any] = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in node.args]
    tensors = [torch.tensor(0) if isinstance(value, _SIZES) else value for value in values]
    dtype = elementwise_dtypes(*tensors, type_promotion_kind=_ONE_DTYPE[node.target])[1]  # type: ignore[index]
    for index, (arg, value) in enumerate(zip(node.args, values, strict=True)):
        if isinstance(value, _SIZES):
            node.update_arg(index, edit.add(node, aten.scalar_tensor.default, arg, dtype=torch.int32))
        elif isinstance(arg, Node) and value.dtype != dtype:
            node.update_arg(index, edit.add(node, aten._to_copy.default, arg, dtype=dtype))
