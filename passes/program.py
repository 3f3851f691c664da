"""The graph every pass works on: an unlifted `GraphModule` whose weights are attributes.

`torch.export` lifts parameters and state into the signature, which makes adding a weight a signature change.
A `GraphProgram` holds the unlifted form instead: parameters, constants and mutable state are `get_attr` nodes,
so a pass adds a weight by adding an attribute. One final `to_exported` restores signature, mutation and shapes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node

from prgec.errors import InternalError

TOKENS = "tokens"
# Inputs whose values differ from row to row; whatever does not depend on them is the same for every batch.
ROW_INPUTS = frozenset({TOKENS, "label_pos", "targets"})

_CHECK_OPS = frozenset(
    {
        torch.ops.aten._assert_tensor_metadata.default,
        torch.ops.aten._assert_async.msg,
        torch.ops.aten._assert_scalar.default,
        torch.ops.aten.sym_constrain_range_for_size.default,
        torch.ops.aten.sym_constrain_range.default,
    }
)


class GraphProgram:
    """An unlifted graph with its attributes.

    Args:
        module: Graph whose nodes all carry `meta["val"]`.
    """

    def __init__(self, module: GraphModule) -> None:
        self.module = module

    @classmethod
    def from_exported(cls, exported: ExportedProgram) -> GraphProgram:
        """Unlift an exported program.

        `ExportedProgram.module()` carries a pre-hook and a `_guards_fn` call that check the *old* inputs, and a
        code generator that repacks them; passes add inputs, so all three are dropped here.
        """
        source = exported.module()
        if not isinstance(source, GraphModule):
            raise InternalError(f"expected a GraphModule, got {type(source).__name__}")
        for node in source.graph.find_nodes(op="call_module"):
            source.graph.erase_node(node)
        if hasattr(source, "_guards_fn"):
            del source._guards_fn
        source.graph.set_codegen(torch.fx.graph.CodeGen())
        return cls(GraphModule(source, source.graph))

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph itself."""
        return self.module.graph

    @property
    def fake_mode(self) -> FakeTensorMode:
        """Mode (and symbolic shapes) every `meta["val"]` belongs to."""
        for node in self.placeholders():
            val = node.meta["val"]
            dynamic = [d for d, size in enumerate(val.shape) if not isinstance(size, int)]
            # Methods without rows have no T.
            longest = self.max_seq_len() if dynamic else 0
            sizes = [traced_seq_len(longest) if d in dynamic else size for d, size in enumerate(val.shape)]
            example.append(torch.zeros(sizes, dtype=val.dtype))
            shapes[str(node.target)] = {d: Dim("T", min=2, max=longest) for d in dynamic} or None
        with torch.no_grad():
            exported = torch.export.export(self.module, tuple(example), dynamic_shapes=shapes, strict=False)
        return exported


def traced_seq_len(max_seq_len: int) -> int:
    """A T to trace a dynamic graph with: not the maximum, where cutting a table to T would look like no cut at all."""
    return max(2, max_seq_len - 1)


def is_check(node: Node) -> bool:
    """Whether a node only asserts something at run time."""
    return node.op == "call_function" and node.target in _CHECK_OPS


def is_mutation(node: Node) -> bool:
    """Whether a node writes to its first argument."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    arguments = node.target._schema.arguments
    return bool(arguments) and arguments[0].alias_info is not None and arguments[0].alias_info.is_write


def is_impure(node: Node) -> bool:
    """Whether dead-code elimination must keep a node: inputs, the output, and whatever changes state."""
    return node.op in {"placeholder", "output"} or is_mutation(node)


def _reads_attr(node: Node) -> bool:
    return isinstance(node.args[0], Node) and node.args[0].op == "get_attr"


def _delete_unused_tensors(module: GraphModule) -> None:
    used = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    for owner_name, owner in list(module.named_modules()):
        prefix = f"{owner_name}." if owner_name else ""
        for table in (owner._parameters, owner._buffers):
            for name in [n for n in table if prefix + n not in used]:
                del table[name]
