"""A backend that gives XNNPACK the linear layers alone; everything else runs on ExecuTorch's own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from prgec.backends.base import Backend

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


class LinearsBackend(Backend):
    """XNNPACK for linear layers."""

    name: ClassVar[str] = "linears"
    methods: ClassVar[frozenset[str]] = frozenset({"prge", "exact"})
    default_method: ClassVar[str] = "exact"

    def check(self) -> None:
        """Need nothing: XNNPACK comes with ExecuTorch."""

    def partitioners(self) -> Sequence[Partitioner]:
        """Return XNNPACK's partitioner, for one kind of layer."""
        from executorch.backends.xnnpack.partition.config.gemm_configs import LinearConfig
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        return [XnnpackPartitioner(configs=[LinearConfig])]
