"""Refuses a model that the HTP could run in pieces only, before the pieces are compiled."""

from __future__ import annotations

from collections import Counter, deque

from torch.fx import Node

from prgec.errors import BackendError
from prgec.passes.dependence import downstream, upstream

_WRAPPER = "hf."


def check_in_one_piece(inside: set[Node], taken: set[Node]) -> None:
    """Check that no op of the model that the HTP cannot run stands between ops that it can.

    Args:
        inside: Calls and inputs the model consists of.
        taken: Calls that the HTP can run.

    Raises:
        BackendError: With the first such op, its place in the model, and how many there are.
    """
    fed, feeding = downstream(taken), upstream(taken)
    between = [
        node for node in inside if node.op == "call_function" and node not in taken and node in fed and node in feeding
    ]
    if not between:
        return
    # In the order of the graph: what is upstream of everything else comes first.
    first = next(node for node in between[0].graph.nodes if node in set(between))
    counts = Counter(op_name(node) for node in between)
    rest = ", ".join(f"{name} x{count}" for name, count in counts.most_common(5))
    raise BackendError(
        f"qnn: the HTP cannot run {op_name(first)}, and the model goes on after it ({rest} in all)",
        where=module_path(first),
        hint="compile it with --backend xnnpack",
    )


def op_name(node: Node) -> str:
    """Short name of a call, such as `aten.gelu`."""
    return ".".join(str(getattr(node.target, "__name__", node.target)).split(".")[:2])


def module_path(node: Node) -> str:
    """Path of the module a node comes from, as the checkpoint names it; else that of the nearest earlier node."""
    pending, seen = deque([node]), {node}
    while pending:
        each = pending.popleft()
        paths = [path for path, _ in (each.meta.get("nn_module_stack") or {}).values() if path]
        if paths:
            return str(paths[-1]).removeprefix(_WRAPPER)
        fresh = [source for source in each.all_input_nodes if source not in seen]
        seen.update(fresh)
        pending.extend(fresh)
    return "the model"
