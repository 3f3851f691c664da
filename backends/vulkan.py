"""Vulkan: GPUs of Android phones. Lowered here, run nowhere yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from prgec.backends.lower_only import LowerOnlyBackend

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


class VulkanBackend(LowerOnlyBackend):
    """Lowers what ExecuTorch's Vulkan delegate has shaders for, in f32."""

    name: ClassVar[str] = "vulkan"
    delegate: ClassVar[str] = "VulkanBackend"
    needs: ClassVar[str] = "GPUs with Vulkan 1.1, by an ExecuTorch built with Vulkan and prgec's kernels"
    methods: ClassVar[frozenset[str]] = frozenset({"prge", "exact"})
    legality: ClassVar[frozenset[str]] = frozenset({"lower-sdpa", "lower-eager-attention", "label-gather-to-bmm"})

    def check(self) -> None:
        """The ExecuTorch wheel brings the exporter."""

    def partitioners(self) -> Sequence[Partitioner]:
        """Ours, by what ExecuTorch's would take."""
        from prgec.backends.vulkan_partitioner import partitioner

        return (partitioner(),)
