"""The op table: how each op of a finished graph is written in ExecuTorch's core ATen form.

The rules write what `ExportedProgram.run_decompositions` gives for these ops, in place; the stock lowering is their
oracle (tests/e2e/test_lowerings.py). Ops that have no row and are not core ATen are refused by name.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload
from torch.fx import Node

from prgec.backends.edge.edit import Edit, shape_of, sizes_of
from prgec.errors import BackendError
from prgec.passes.infra import describe
from prgec.passes.program import argument

aten = torch.ops.aten

Rule: TypeAlias = Callable[[Edit, Node], None]


class UnknownOpError(BackendError):
    """An op that lowering in place has no rule for; ExecuTorch's own lowering may have one."""


_CPU = {"layout": torch.strided, "device": torch.device("cpu")}


def to_core_form(edit: Edit, kept: Collection[OpOverload], keeps: Callable[[Node], bool]) -> None:
    """Write every call in core ATen form.

    Args:
        edit: Graph to change.
        kept: Ops that a delegate takes whole.
        keeps: Whether it takes a call of one of these.

    Raises:
        UnknownOpError: For an op without a row.
    """
    for node in list(edit.graph.nodes):
        if node.op != "call_function" or (node.target in kept and keeps(node)):
            continue
        rule = RULES.get(node.target)
        if rule is not None:
            rule(edit, node)
        elif isinstance(node.target, OpOverload) and not _is_core(node.target):
            raise UnknownOpError(
                f"the op table has no row for {describe(node)} in {_module_of(node)}",
                hint="compile with --lowering stock, and report it with the model's config.json",
            )


def _is_core(op: OpOverload) -> bool:
    return op.namespace != "aten" or torch.Tag.core in op.tags or op in _OTHERS


def _module_of(node: Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if path]
    return paths[-1].removeprefix("hf.") if paths else "no module"


def _softmax(edit: Edit, node: Node) -> None:
    edit.become(node, aten._softmax.default, node.args[0], node.args[1], False)


def _log_softmax(edit: Edit, node: Node) -> None:
    edit.become(node, aten._log_softmax.default, node.args[0], node.args[1], False)


def _silu(edit: Edit, node: Node) -> None:
    sigmoid = edit.add(node, aten.sigmoid.default, node.args[0])
    edit.become(node, aten.mul.Tensor, node.args[0], sigmoid)


def _transpose(edit: Edit, node: Node) -> None:
    source, first, second = node.args
    assert isinstance(source, Node)
    rank = len(shape_of(source))
    order = list(range(rank))
    i, j = int(first) % rank, int(second) % rank  # type: ignore[arg-type]
    order[i], order[j] = j, i
    edit.become(node, aten.permute.default, source, order)


def _reshape(edit: Edit, node: Node) -> None:
    """A view where the strides allow one, else a copy first."""
    source, sizes = node.args
    try:
        edit.values.result(aten.view.default, (source, sizes), {})
    except (RuntimeError, ValueError):
        source = edit.add(node, aten.clone.default, source, memory_format=torch.contiguous_format)
    edit.become(node, aten.view.default, source, sizes_of(shape_of(node)))


def _contiguous(edit: Edit, node: Node) -> None:
    source = node.args[0]
    assert isinstance(source, Node)
    if source.meta["val"].is_contiguous():
        edit.replace(node, source)
    else:
        edit.become(node, aten.clone.default, source, memory_format=torch.contiguous_format)


def _to(edit: Edit, node: Node) -> None:
    source, dtype = node.args[:2]
    assert isinstance(source, Node)
    if source.meta["val"].dtype == dtype:
        edit.replace(node, source)
    else:
        edit.become(node, aten._to_copy.default, source, dtype=dtype)


def _where_other(edit: Edit, node: Node) -> None:
    condition, source, other = node.args
    scalar = edit.add(node, aten.scalar_tensor.default, other, dtype=node.meta["val"].dtype, **_CPU)
    edit.become(node, aten.where.self, condition, source, scalar)


def _where_self(edit: Edit, node: Node) -> None:
    condition, source, other = node.args
    scalar = edit.add(node, aten.scalar_tensor.default, source, dtype=node.meta["val"].dtype, **_CPU)
    edit.become(node, aten.where.self, condition, scalar, other)


def _where_scalars(edit: Edit, node: Node) -> None:
    condition, source, other = node.args
    dtype = node.meta["val"].dtype
    # The second one comes first, as in a trace.
    second = edit.add(node, aten.scalar_tensor.default, other, dtype=dtype, **_CPU)
    first = edit.add(node, aten.scalar_tensor.default, source, dtype=dtype, **_CPU)
    edit.become(node, aten.where.self, condition, first, second)


def _squeeze(edit: Edit, node: Node) -> None:
    edit.become(node, aten.squeeze.dims, node.args[0], [node.args[1]])


def _stack(edit: Edit, node: Node) -> None:
    """Joined along a dimension and split again by a view; along a last one, each part gets that dimension first."""
    parts, shape = node.args[0], shape_of(node)
    assert isinstance(parts, list | tuple)
    given = argument(node, 1, "dim", 0)
    assert isinstance(given, int)
    dim = given % len(shape)
    if dim < len(shape) - 1:
        joined = edit.add(node, aten.cat.default, list(parts), dim)
        edit.become(node, aten.view.default, joined, sizes_of(shape))
    else:
        raised = [edit.add(node, aten.unsqueeze.default, part, dim) for part in parts]
        edit.become(node, aten.cat.default, raised, given)


def _split(edit: Edit, node: Node) -> None:
    """Parts of the sizes that the node's value has."""
    dim = argument(node, 2, "dim", 0)
    sizes = [part.shape[dim] for part in node.meta["val"]]
    edit.become(node, aten.split_with_sizes.default, node.args[0], sizes, dim)


def _sum(edit: Edit, node: Node) -> None:
    edit.become(node, aten.sum.dim_IntList, node.args[0], [])


def _all(edit: Edit, node: Node) -> None:
    """All are true where none is false."""
    inverse = edit.add(node, aten.logical_not.default, node.args[0])
    any_false = edit.add(node, aten.any.dims, inverse)
    edit.become(node, aten.logical_not.default, any_false)


def _filled(value: float) -> Rule:
    def rule(edit: Edit, node: Node) -> None:
        options = {"pin_memory": False, **node.kwargs, "memory_format": torch.preserve_format}
        edit.become(node, aten.full_like.default, node.args[0], value, **options)

    return rule


def _named(op: OpOverload) -> Rule:
    """The same call by another name."""

    def rule(edit: Edit, node: Node) -> None:
        edit.become(node, op, *node.args)

    return rule


def _rsub(edit: Edit, node: Node) -> None:
    edit.become(node, aten.sub.Tensor, node.args[1], node.args[0])


def _square(edit: Edit, node: Node) -> None:
    edit.become(node, aten.pow.Tensor_Scalar, node.args[0], 2)


def _flatten(edit: Edit, node: Node) -> None:
    edit.become(node, aten.reshape.default, node.args[0], sizes_of(shape_of(node)))
    _reshape(edit, node)


def _arange(edit: Edit, node: Node) -> None:
    edit.become(node, aten.arange.start_step, 0, node.args[0], **{"layout": torch.strided, **node.kwargs})


def _layer_norm(edit: Edit, node: Node) -> None:
    source, sizes, weight, bias = (*node.args, None, None)[:4]
    eps = argument(node, 4, "eps", 1e-5)
    whole = edit.add(node, aten.native_layer_norm.default, source, sizes, weight, bias, eps)
    edit.become(node, operator.getitem, whole, 0)


def _linear(edit: Edit, node: Node) -> None:
    """A product of matrices: rows of all batches below each other, the weight transposed."""
    source, weight, bias = (*node.args, None)[:3]
    assert isinstance(source, Node)
    width, rank = shape_of(source)[-1], len(shape_of(source))

    def flat() -> Any:
        if rank == 2:
            return source
        rows: Any = source
        if not source.meta["val"].is_contiguous():
            rows = edit.add(node, aten.clone.default, source, memory_format=torch.contiguous_format)
        return edit.add(node, aten.view.default, rows, [_product(shape_of(source)[:-1]), width])

    def swapped() -> Node:
        return edit.add(node, aten.permute.default, weight, [1, 0])

    if bias is None:
        weight_T = swapped()
        product: tuple[Any, ...] = (aten.mm.default, flat(), weight_T)
    else:
        rows = flat()
        product = (aten.addmm.default, bias, rows, swapped())
    if rank == 2:
        edit.become(node, *product)
    else:
        edit.become(node, aten.view.default, edit.add(node, *product), sizes_of(shape_of(node)))


def _product(sizes: tuple[Any, ...]) -> int:
    """Their product, or -1 where it depends on T."""
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else -1


def _dropped(edit: Edit, node: Node) -> None:
    edit.graph.erase_node(node)


RULES: Mapping[Any, Rule] = {
    aten.softmax.int: _softmax,
    aten.log_softmax.int: _log_softmax,
    aten.silu.default: _silu,
    aten.transpose.int: _transpose,
    aten.reshape.default: _reshape,
    aten.flatten.using_ints: _flatten,
    aten.contiguous.default: _contiguous,
    aten.to.dtype: _to,
    aten.where.ScalarOther: _where_other,
    aten.where.ScalarSelf: _where_self,
    aten.where.Scalar: _where_scalars,
    aten.squeeze.dim: _squeeze,
    aten.stack.default: _stack,
    aten.split.Tensor: _split,
    aten.chunk.default: _split,
    aten.sum.default: _sum,
    aten.all.default: _all,
    aten.ones_like.default: _filled(1),
    aten.zeros_like.default: _filled(0),
    aten.__and__.Tensor: _named(aten.bitwise_and.Tensor),
    aten.__or__.Tensor: _named(aten.bitwise_or.Tensor),
    aten.__xor__.Tensor: _named(aten.bitwise_xor.Tensor),
    aten.rsub.Scalar: _rsub,
    aten.square.default: _square,
    aten.arange.default: _arange,
    aten.layer_norm.default: _layer_norm,
    aten.linear.default: _linear,
    aten._assert_tensor_metadata.default: _dropped,
}
# Not tagged as core, and left whole by ExecuTorch's own decompositions.
_OTHERS = frozenset({aten.copy_.default, aten.bitwise_left_shift.Tensor_Scalar, aten.bitwise_right_shift.Tensor_Scalar})
