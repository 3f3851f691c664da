"""What a backend is: what it needs here, how it lowers, and why an op stayed outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node
    from torch.fx.passes.infra.pass_base import PassResult


EdgePass: TypeAlias = "Callable[[GraphModule], PassResult]"


class Backend(Protocol):
    """One lowering target.

    Attributes:
        name: Row of the backend table.
        dynamic_seq_len: Whether the target takes any T up to the compiled maximum.
        has_kernels: Whether its runtime can call the prge kernels.
        has_data_file: Whether weights go to a file beside the .pte.
        schemes: Values of `--quantize`, besides `none`, that it has.
        embedding_bits: Values of `--quantize-embedding`, besides 0, that it has.
        dtypes: What frozen layers may multiply in, the default first.
        legality: Legality passes the target needs; it leaves out the others.
    """

    name: ClassVar[str]
    dynamic_seq_len: ClassVar[bool]
    has_kernels: ClassVar[bool]
    has_data_file: ClassVar[bool]
    schemes: ClassVar[frozenset[str]]
    embedding_bits: ClassVar[frozenset[int]]
    dtypes: ClassVar[tuple[str, ...]]
    legality: ClassVar[frozenset[str]]

    @property
    def soc(self) -> str:
        """Chip it compiles for; empty where that makes no difference."""

    def memory_bytes(self, num_weights: int, scheme: str) -> int:
        """Memory a lowering takes at its peak, process and all, as far as it is known; else 0.

        Args:
            num_weights: Parameters of the model.
            scheme: How frozen layers are quantised, as `--quantize` spells it.
        """

    def check(self) -> None:
        """Check that this machine can lower for the target.

        Raises:
            BackendError: With everything that is missing, and how to get it.
        """

    def versions(self) -> Mapping[str, str]:
        """What a program depends on besides the packages every manifest names; called after `check`."""

    def partitioners(self) -> Sequence[Partitioner]:
        """Partitioners for the forward method; empty keeps every op on ExecuTorch's own kernels."""

    def edge_passes(self, program: ExportedProgram) -> Sequence[EdgePass]:
        """Rewrites of the forward in ExecuTorch's edge dialect, just before it is partitioned.

        Args:
            program: The forward as `prepare` left it.
        """

    def why_on_cpu(self, op: str, node: Node, program: ExportedProgram) -> str:
        """Reason why a call of `op` (such as `aten.embedding`) is not in a delegate, in one clause.

        Args:
            op: Short name of the op.
            node: The call.
            program: Edge program it is in, after partitioning.
        """

    def prepare(self, programs: Mapping[str, ExportedProgram]) -> Mapping[str, ExportedProgram]:
        """Last changes to the exported methods before lowering."""

    def lowering(self) -> AbstractContextManager[None]:
        """Surroundings of a lowering, `prepare` included."""

    def load_runtime(self) -> None:
        """Load what this process needs, besides ExecuTorch, to run programs for the target.

        Raises:
            BackendError: If they do not run here.
        """
