"""Why an op is not in an XNNPACK delegate: by its place in the graph first, then in the partitioner's own words."""

from __future__ import annotations

import logging
from typing import Any

import torch
from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
from torch.export import ExportedProgram
from torch.fx import Node

from prgec.backends.sources import is_loss, is_update, sources_of

_UPDATE = "the state update; it changes memory that a delegate would cache"
_LOSS = "the f32 loss"
_SIZES = "arithmetic on sizes"
_LOOKUP = "XNNPACK has no table lookup"
_LABELS = "one-hot rows of the label positions; XNNPACK has no integers"
_INTEGERS = "XNNPACK computes in floating point only"
_SLICES = "XNNPACK slices only fixed shapes"
_VIEWS = "XNNPACK reshapes to fixed sizes and at most one inferred size"
_OF_TABLES = {
    "aten.slice": f"tables are cut to T here; {_SLICES}",
    "aten.cat": "copies of a table, one for each head of a group",
}
_NO_OP = "XNNPACK has no such op"


def why_on_cpu(op: str, node: Node, program: ExportedProgram) -> str:
    """Return the reason in one clause.

    Args:
        op: Short name, such as `aten.embedding`.
        node: The call.
        program: Edge program it is in, after partitioning.
    """
    by_place = _why_here(op, node, program)
    return by_place or _own_reason(node, program) or _NO_OP


def _why_here(op: str, node: Node, program: ExportedProgram) -> str:
    """The reason that follows from what a node computes and of what; empty if none does."""
    if op.startswith(("size.", "aten.sym_size")):
        return _SIZES
    # The update reads the gradient of the loss, so it goes first.
    if op.startswith("prge."):
        return _UPDATE
    if is_loss(node, program):
        return _LOSS
    sources = sources_of(node, program)
    if is_update(sources):
        return _UPDATE
    if op == "aten.embedding":
        return _LOOKUP
    if op in _OF_TABLES and not sources:
        return _OF_TABLES[op]
    if not all(map(_is_float, (node, *node.all_input_nodes))):
        return _LABELS if sources <= {"tokens", "label_pos"} and "label_pos" in sources else _INTEGERS
    if op == "aten.slice" and _is_dynamic(node):
        return _SLICES
    return _VIEWS if op == "aten.view" and any(isinstance(size, Node) for size in node.args[1]) else ""  # type: ignore[union-attr]


def _own_reason(node: Node, program: ExportedProgram) -> str:
    """The reason of XNNPACK's partitioner for leaving a node outside; empty if it does not know the op."""
    name = str(getattr(node.target, "__name__", "")).removeprefix("aten.")
    for config in ALL_PARTITIONER_CONFIGS:
        if config.target_name == name:
            return _refusal(config(), node, program)
    return ""


def _refusal(config: Any, node: Node, program: ExportedProgram) -> str:
    """The partitioner logs its reasons instead of returning them."""
    listener = _Listener()
    logger = logging.getLogger("executorch.backends.xnnpack.partition.config")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        is_taken = config.check_constraints(node, program)
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)
        logger.propagate = propagate
    if is_taken:
        return "XNNPACK takes the op, but its inputs come from outside and nothing inside follows"
    return f"XNNPACK: {listener.reason}" if listener.reason else "XNNPACK takes this op only in other shapes or dtypes"


class _Listener(logging.Handler):
    """Keeps the last reason logged."""

    reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.reason = str(getattr(record.msg, "reason", ""))


def _is_float(node: Node) -> bool:
    """Whether a node is not a tensor, or a tensor of floating point."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.dtype.is_floating_point


def _is_dynamic(node: Node) -> bool:
    """Whether the first argument's shape depends on T."""
    source = node.args[0]
    return isinstance(source, Node) and any(not isinstance(size, int) for size in source.meta["val"].shape)
