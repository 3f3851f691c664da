"""The reference backend: ExecuTorch's own CPU kernels, no delegate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torch.fx import Node

    from prgec.backends.base import EdgePass


class PortableBackend:
    """Slow, small and everywhere: the oracle the others are compared with."""

    name: ClassVar[str] = "portable"
    dynamic_seq_len: ClassVar[bool] = True
    has_kernels: ClassVar[bool] = True
    has_data_file: ClassVar[bool] = False
    schemes: ClassVar[frozenset[str]] = frozenset({"8da8w", "8da4w"})
    embedding_bits: ClassVar[frozenset[int]] = frozenset({8, 4})
    dtypes: ClassVar[tuple[str, ...]] = ("f32",)
    legality: ClassVar[frozenset[str]] = frozenset()
    soc: ClassVar[str] = ""

    def memory_bytes(self, num_weights: int, scheme: str) -> int:
        """Not measured."""
        del num_weights, scheme
        return 0

    def check(self) -> None:
        """ExecuTorch itself is all it needs."""

    def versions(self) -> Mapping[str, str]:
        """ExecuTorch's version says it all."""
        return {}

    def partitioners(self) -> Sequence[Partitioner]:
        """No delegate."""
        return ()

    def edge_passes(self, program: ExportedProgram) -> Sequence[EdgePass]:
        """No rewrites."""
        del program
        return ()

    def why_on_cpu(self, op: str, node: Node, program: ExportedProgram) -> str:
        """Everything is."""
        del op, node, program
        return "the portable backend has no delegate"

    def prepare(self, programs: Mapping[str, ExportedProgram]) -> Mapping[str, ExportedProgram]:
        """Nothing to change."""
        return programs

    def lowering(self) -> AbstractContextManager[None]:
        """Nothing to set up."""
        return nullcontext()

    def load_runtime(self) -> None:
        """ExecuTorch's wheel has it all."""
