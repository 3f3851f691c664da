"""Drops copies that only change strides, once nobody looks at strides any more."""

from __future__ import annotations

from executorch.exir.dialects._ops import ops as exir_ops
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

_CLONE = exir_ops.edge.aten.clone.default
_PERMUTES = (exir_ops.edge.aten.permute_copy.default, exir_ops.edge.aten.transpose_copy.int)


def remove_clones_of_permutes(module: GraphModule) -> PassResult:
    """Replace the `clone(permute_copy(x))` of `transpose-to-copy` by `permute_copy(x)` with the clone's value."""
    clones = [node for node in module.graph.nodes if node.target is _CLONE and _is_permute(node.args[0])]
    for clone in clones:
        permute = clone.args[0]
        assert isinstance(permute, Node)
        permute.meta["val"] = clone.meta["val"]
        clone.replace_all_uses_with(permute)
        module.graph.erase_node(clone)
    if clones:
        module.recompile()
    return PassResult(module, bool(clones))


def remove_clones(module: GraphModule) -> PassResult:
    """Replace every `clone(x)` by x, for a delegate that has no strides at all."""
    clones = [node for node in module.graph.nodes if node.target is _CLONE]
    for clone in clones:
        clone.replace_all_uses_with(clone.args[0])
        module.graph.erase_node(clone)
    if clones:
        module.recompile()
    return PassResult(module, bool(clones))


def _is_permute(node: object) -> bool:
    return isinstance(node, Node) and node.target in _PERMUTES and len(node.users) == 1
