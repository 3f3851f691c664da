"""ExecuTorch's passes on the way to its edge dialect, less the traces that they do not need.

Each of them rewrites ops one by one and traces the whole graph again for it, eight traces a method: a third of the time
of lowering a Llama. Asking a pass about every op of the graph without tracing it costs next to nothing. In a graph of
ours most have nothing to say; two only write another op, or a constant, where one stood, and that is done in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import torch
from executorch.exir.pass_base import ExportPass, NodeMetadata, ProxyValue
from executorch.exir.passes.normalize_transpose_pass import NormalizeTransposePass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.replace_broken_ops_with_function_ops_pass import ReplaceBrokenOpsWithFunctionalOpsPass
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from executorch.exir.program import _program
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.passes.infra.pass_base import PassResult
from torch.utils._pytree import tree_leaves, tree_map

# What these do, they do to one op at a time, in `call_operator`.
OP_BY_OP = (
    NormalizeTransposePass,
    ReplaceBrokenOpsWithFunctionalOpsPass,
    ScalarToTensorPass,
    SymToTensorPass,
    RemoveMixedTypeOperators,
)


@contextmanager
def only_needed_passes() -> Iterator[None]:
    """Within it, ExecuTorch's conversion to the edge dialect traces a graph only for passes that need it."""
    whole, replace_ops = _program._get_aten_to_edge_passes, _program.OpReplacePass

    def needed(config: Any) -> tuple[list[Any], list[Any]]:
        before, after = whole(config)
        return [_if_needed(each) for each in before], after

    # The lists are made in functions of ExecuTorch's own; nothing of its interface reaches them.
    _program._get_aten_to_edge_passes = needed
    _program.OpReplacePass = lambda: partial(rewrite_in_place, replace_ops())
    try:
        yield
    finally:
        _program._get_aten_to_edge_passes, _program.OpReplacePass = whole, replace_ops


def changes(export_pass: ExportPass, graph_module: GraphModule) -> bool:
    """Whether a pass that rewrites ops one by one would rewrite one of this graph's."""
    asked = _asked(export_pass)
    return any(asked.would_change(node) for node in graph_module.graph.nodes if node.op == "call_function")


def rewrite_in_place(export_pass: ExportPass, graph_module: GraphModule) -> PassResult:
    """Do what a pass does that writes one op for another, or a constant for a number: values stay what they are."""
    asked, changed = _asked(export_pass), False
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and asked.would_change(node):
            ((op, args, kwargs),) = asked.traced
            with graph_module.graph.inserting_before(node):
                node.args, node.kwargs = (tree_map(partial(_argument, node), each) for each in (args, kwargs))
            node.target, changed = op, True
    if changed:
        graph_module.recompile()
    return PassResult(graph_module, changed)


def _argument(node: Node, value: Any) -> Any:
    """What a node reads, of what a pass would have traced: a node, a constant, or anything else as it is."""
    if isinstance(value, ProxyValue):
        return value.node
    if not isinstance(value, torch.Tensor):
        return value
    return _constant(node, value)


def _constant(node: Node, value: torch.Tensor) -> Node:
    module = node.graph.owning_module
    assert module is not None
    name = next(name for number in count() if not hasattr(module, name := f"_tensor_constant{number}"))
    module.register_buffer(name, value)
    read = node.graph.create_node("get_attr", name)
    mode = detect_fake_mode(tree_leaves(node.meta["val"]))
    assert mode is not None
    read.meta["val"] = mode.from_tensor(value, static_shapes=True)
    return read


def _asked(export_pass: ExportPass) -> _Asked:
    asked: _Asked = type("Asked", (type(export_pass), _Asked), {})()
    return asked


def _if_needed(each: Any) -> Callable[[GraphModule], PassResult | None]:
    # Passes in ExecuTorch's lists are wrapped in functions that say nothing of the pass.
    export_pass = getattr(each, "__wrapped__", each)
    if type(export_pass) not in OP_BY_OP:
        return each  # type: ignore[no-any-return]
    if isinstance(export_pass, ScalarToTensorPass):
        return partial(rewrite_in_place, export_pass)

    def run(graph_module: GraphModule) -> PassResult | None:
        if not changes(export_pass, graph_module):
            return PassResult(graph_module, False)
        result: PassResult | None = each(graph_module)
        return result

    return run


class _Asked(ExportPass):  # type: ignore[misc]  # executorch ships no types for it
    """Stands where a pass has `ExportPass` above it, and remembers what would have been traced."""

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: NodeMetadata) -> ProxyValue:
        self.traced.append((op, args, kwargs))
        return self._result

    def would_change(self, node: Node) -> bool:
        # Arithmetic on sizes and higher-order ops go other ways through a pass.
        if not isinstance(node.target, OpOverload):
            return False
        self.traced: list[tuple[Any, Any, Any]] = []
        self._result = ProxyValue(node.meta.get("val"), node)
        args, kwargs = _values(node.args), _values(node.kwargs)
        self.call_operator(node.target, args, kwargs, NodeMetadata(node.meta))
        return len(self.traced) != 1 or not _same(self.traced[0], (node.target, args, kwargs))


def _values(arguments: Any) -> Any:
    return map_arg(arguments, lambda node: ProxyValue(node.meta.get("val"), node))


def _same(one: Any, other: Any) -> bool:
    # Passes make lists of tuples, and the other way round, where they leave what is in them alone.
    leaves, other_leaves = tree_leaves(one), tree_leaves(other)
    return len(leaves) == len(other_leaves) and all(a is b for a, b in zip(leaves, other_leaves, strict=True))
