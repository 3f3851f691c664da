"""XNNPACK as a user of ExecuTorch meets it: its own partitioner, no legality passes, fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from prgec.backends import load_backend
from prgec.backends.xnnpack import XnnpackBackend
from prgec.errors import UsageError

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram

    from prgec.backends.base import Backend, EdgePass


class StockXnnpackBackend(XnnpackBackend):
    """Lowers a graph as it comes."""

    dynamic_seq_len: ClassVar[bool] = False
    legality: ClassVar[frozenset[str]] = frozenset()

    def partitioners(self) -> Sequence[Partitioner]:
        """The partitioner ExecuTorch ships, at its defaults."""
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        return (XnnpackPartitioner(),)

    def edge_passes(self, program: ExportedProgram) -> Sequence[EdgePass]:
        """No rewrites."""
        del program
        return ()


def stock_backend(name: str) -> Backend:
    """Return the backend `name` without what prgec adds to it.

    Raises:
        UsageError: If that is not known of the backend.
    """
    if name == XnnpackBackend.name:
        return StockXnnpackBackend()
    if name == "portable":
        # It adds nothing.
        return load_backend(name)
    raise UsageError(f"the variant paper has no stock lowering for {name}", hint="use --backend xnnpack")
