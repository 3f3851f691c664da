"""The interface of backends: their needs on this machine, how they lower, and why an op stayed outside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from prgec.backends import STOCK
from prgec.core.contract.names import STATE_MODES

if TYPE_CHECKING:
    from executorch.exir.backend.backend_details import PreprocessResult
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node
    from torch.fx.passes.infra.pass_base import PassResult

    from prgec.core.contract.manifest import Manifest


EdgePass: TypeAlias = "Callable[[GraphModule], PassResult]"


@dataclass(frozen=True)
class Setting:
    """A choice that one backend alone offers: a parameter of its class, and a flag.

    Attributes:
        name: Name of the parameter; the flag is `--<name>`.
        metavar: Placeholder of the value in help.
        help: Meaning of the choice, in a sentence.
    """

    name: str
    metavar: str
    help: str


class Backend(ABC):
    """One lowering target; everything but `name` and `check` has the answer of a target without special needs.

    Attributes:
        name: Row of the backend table.
        dynamic_seq_len: Whether the target takes any T up to the compiled maximum.
        has_kernels: Whether its runtime can call the prge kernels.
        has_data_file: Whether weights go to a file beside the .pte.
        schemes: Values of `--quantize`, besides `none`, that it has.
        embedding_bits: Values of `--quantize-embedding`, besides 0, that it has.
        dtypes: Types that frozen layers may multiply in, the default first.
        legality: Legality passes the target needs; it leaves out the others.
        settings: Further choices that it offers.
        methods: Ways to train that its programs have.
        default_method: The one of a user who names none.
        is_half: Whether it computes gradients in 16 bits, so that they need a loss scale and gentle constants.
        recomputes: Whether values live as the graph orders them, so that computing one again frees its memory.
        states: Values of `--state` that it has.
        route: How its programs are lowered where a user names no route. Only a backend that lowering in place was
            compared on names that; passes of the others are written for the traces of ExecuTorch's own route.
    """

    name: ClassVar[str]
    dynamic_seq_len: ClassVar[bool] = False
    has_kernels: ClassVar[bool] = True
    has_data_file: ClassVar[bool] = False
    schemes: ClassVar[frozenset[str]] = frozenset()
    embedding_bits: ClassVar[frozenset[int]] = frozenset()
    dtypes: ClassVar[tuple[str, ...]] = ("f32",)
    legality: ClassVar[frozenset[str]] = frozenset()
    settings: ClassVar[tuple[Setting, ...]] = ()
    methods: ClassVar[frozenset[str]] = frozenset({"prge"})
    default_method: ClassVar[str] = "prge"
    is_half: ClassVar[bool] = False
    recomputes: ClassVar[bool] = False
    states: ClassVar[frozenset[str]] = frozenset(STATE_MODES)
    route: ClassVar[str] = STOCK

    # Makes a delegate of a part of a program, `preprocess(part, weights=store)`; None leaves it to ExecuTorch.
    preprocess: ClassVar[Callable[..., PreprocessResult] | None] = None

    @property
    def soc(self) -> str:
        """The chip it compiles for, as manifests name it; empty where that makes no difference."""
        return ""

    @classmethod
    def details(cls, manifest: Manifest) -> Sequence[str]:
        """Remarks on a program for the target, a sentence each."""
        del manifest
        return ()

    @abstractmethod
    def check(self) -> None:
        """Check that this machine can lower for the target.

        Raises:
            BackendError: With everything that is missing, and how to get it.
        """

    def found(self) -> Mapping[str, str]:
        """The notable things that `check` found on this machine, by name; called after it."""
        return {}

    def versions(self) -> Mapping[str, str]:
        """Versions that a program depends on, without the packages every manifest names; called after `check`."""
        return {}

    def memory_bytes(self, num_weights: int, scheme: str, num_tokens: int = 0) -> int:
        """Memory a lowering takes at its peak, process and all, as far as it was measured; else 0.

        Args:
            num_weights: Parameters of the model.
            scheme: How frozen layers are quantised, as `--quantize` spells it.
            num_tokens: Tokens of one call, N times T; 0 for few.
        """
        del num_weights, scheme, num_tokens
        return 0

    def partitioners(self) -> Sequence[Partitioner]:
        """Partitioners for the forward method; empty keeps every op on ExecuTorch's own kernels."""
        return ()

    def edge_passes(self, program: ExportedProgram) -> Sequence[EdgePass]:
        """Rewrites of the forward in ExecuTorch's edge dialect, just before it is partitioned.

        Args:
            program: The forward as `prepare` left it.
        """
        del program
        return ()

    def why_on_cpu(self, op: str, node: Node, program: ExportedProgram) -> str:
        """Reason why a call of `op` (such as `aten.embedding`) is not in a delegate, in one clause.

        Args:
            op: Short name of the op.
            node: The call.
            program: Edge program it is in, after partitioning.
        """
        del op, node, program
        return f"the {self.name} backend has no delegate"

    def prepare(self, programs: Mapping[str, ExportedProgram]) -> Mapping[str, ExportedProgram]:
        """Last changes to the exported methods before lowering."""
        return programs

    def lowering(self) -> AbstractContextManager[None]:
        """Surroundings of a lowering, `prepare` included."""
        return nullcontext()

    def load_runtime(self) -> None:
        """Load what this process needs to run programs for the target, besides the kernels and XNNPACK.

        Raises:
            BackendError: If they do not run here.
        """
        from prgec.runtime_ops.executorch_libraries import load_bindings

        load_bindings()
