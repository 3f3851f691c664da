"""The calls in each delegate, and those outside with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule

from prgec.backends.delegation_report import CpuOp, Delegate, DelegationReport

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node


def report(program: ExportedProgram, why_on_cpu: Callable[[str, Node, ExportedProgram], str]) -> DelegationReport:
    """Describe a lowered method.

    Args:
        program: Edge program after partitioning.
        why_on_cpu: Gives the reason for a call outside; calls of one op with different reasons are listed apart.
    """
    module = program.graph_module
    delegates: list[Delegate] = []
    outside: Counter[tuple[str, str]] = Counter()
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is executorch_call_delegate:
            delegates.append(_delegate(_lowered(module, node)))
        elif (name := _name(node)) is not None:
            outside[name, why_on_cpu(name, node, program)] += 1
    cpu_ops = (CpuOp(op, count, reason) for (op, reason), count in sorted(outside.items()))
    return DelegationReport(tuple(delegates), tuple(cpu_ops))


def _lowered(module: GraphModule, node: Node) -> LoweredBackendModule:
    reference = node.args[0]
    lowered = getattr(module, str(reference.target))  # type: ignore[union-attr]
    assert isinstance(lowered, LoweredBackendModule)
    return lowered


def _delegate(lowered: LoweredBackendModule) -> Delegate:
    names = [_name(node) for node in lowered.original_module.graph.nodes if node.op == "call_function"]
    counts = Counter(name for name in names if name is not None)
    return Delegate(lowered.backend_id, sum(counts.values()), dict(sorted(counts.items())))


def _name(node: Node) -> str | None:
    """Short op name; None for tuple access, which is not an op at run time."""
    target: Any = node.target
    if target is torch.ops.higher_order.auto_functionalized_v2:
        # A call that mutates its arguments, wrapped until memory is planned.
        target = node.args[0]
    # Edge ops wrap the ATen overload; an ATen overload has an `_op` of its own, which is something else.
    overload = target if isinstance(target, torch._ops.OpOverload) else getattr(target, "_op", target)
    if isinstance(overload, torch._ops.OpOverload):
        return f"{overload.namespace}.{overload._opname.removesuffix('_copy')}"
    name = str(getattr(target, "__name__", target))
    return None if name == "getitem" else f"size.{name}"
