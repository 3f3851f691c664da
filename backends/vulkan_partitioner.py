"""Puts the ops for which ExecuTorch's Vulkan delegate has shaders into it."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from torch.fx import Node

from prgec.backends.forward_partitioner import ForwardPartitioner

_THEIRS = "executorch.backends.vulkan.partitioner.vulkan_partitioner"


def partitioner() -> ForwardPartitioner:
    """A partitioner by ExecuTorch's list of ops and of what each takes."""
    theirs = _import_partitioner()
    limits = theirs.utils
    support = theirs.VulkanSupportedOperators(limits.DEFAULT_TEXTURE_LIMITS, limits.DEFAULT_BUFFER_LIMIT)

    def takes(node: Node) -> bool:
        return bool(support.is_node_supported({}, node))

    return ForwardPartitioner("VulkanBackend", (), takes, lambda program: list(theirs.ops_not_to_decompose))


def _import_partitioner() -> Any:
    """Import it, and take back what it does to logging: everything of INFO, shown to everybody."""
    root = logging.getLogger()
    level = root.level
    try:
        return importlib.import_module(_THEIRS)
    finally:
        root.setLevel(level)
