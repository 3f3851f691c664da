"""Lowers to the HTP of one Snapdragon chip, in fp16, with f32 updates and an f32 loss around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from prgec.backends.base import Backend, Setting
from prgec.backends.qnn.socs import DEFAULT_SOC, device_needs, find_soc
from prgec.core.contract.names import SIDE

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torch.fx import Node

    from prgec.backends.base import EdgePass
    from prgec.core.contract.manifest import Manifest

# docs/reports/qnn-tinyllama.md
_MEMORY_BASE_BYTES = 1_000_000_000
_MEMORY_BYTES_A_WEIGHT = {"none": 18, "w8a16": 15, "w4a16": 13}
# That was measured with so many tokens a call; each more takes memory in proportion to the layers it passes.
_MEMORY_TOKENS = 512
_MEMORY_BYTES_A_WEIGHT_AND_TOKEN = 5e-4


class QnnBackend(Backend):
    """Lowers the whole forward, embedding included, to one context binary.

    Args:
        soc: Chip to compile for, a row of `socs.SOCS`.

    Raises:
        UsageError: If there is no such chip, or it has no fp16.
    """

    name: ClassVar[str] = "qnn"
    # torchao's reach the graph as ops the HTP does not know. It multiplies fp16 with narrow weights as they are.
    schemes: ClassVar[frozenset[str]] = frozenset({"w8a16", "w4a16"})
    # The HTP multiplies in fp16 either way: f16 weights only halve every copy the compiler makes of them.
    dtypes: ClassVar[tuple[str, ...]] = ("f16", "f32")
    # Seen on the simulator of 2.51: the HTP's own LayerNorm is wrong where a residual passes it by, and a gather from
    # 8 MiB of activations or so takes the rows of other examples.
    legality: ClassVar[frozenset[str]] = frozenset(
        {"lower-sdpa", "lower-eager-attention", "layer-norm-to-means", "label-gather-to-bmm", "narrow-weights"}
    )
    methods: ClassVar[frozenset[str]] = frozenset({"prge", "exact", "shortcut", SIDE})
    # Nodes outside of the delegate are found by our operators: gradients by the operators that read them.
    states: ClassVar[frozenset[str]] = frozenset({"seeded", "dual"})
    is_half: ClassVar[bool] = True
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("soc", "CHIP", f"Chip for --backend qnn, such as {DEFAULT_SOC}, the default."),
    )

    def __init__(self, soc: str = DEFAULT_SOC) -> None:
        self._soc = find_soc(soc)

    @property
    def soc(self) -> str:
        """The chip's name."""
        return self._soc.name

    @classmethod
    def details(cls, manifest: Manifest) -> Sequence[str]:
        """The requirements on a device that is to run the program."""
        needs = device_needs(manifest.soc, manifest.versions.get("qairt", ""))
        return (f"runs on {needs}; their licence applies, docs/qnn.md",) if needs else ()

    def found(self) -> Mapping[str, str]:
        """Qualcomm's libraries, and what governs their use."""
        from prgec.backends.qnn.loading import load_libraries

        loaded = load_libraries()
        return {
            "build": loaded.build,
            "origin": loaded.libraries.origin,
            "folder": str(loaded.libraries.folder),
            "licence": str(loaded.libraries.licence or "not with them"),
        }

    def versions(self) -> Mapping[str, str]:
        """The version of Qualcomm's libraries: a device needs the same or a later one."""
        from prgec.backends.qnn.loading import load_libraries

        return {"qairt": load_libraries().version_text}

    def memory_bytes(self, num_weights: int, scheme: str, num_tokens: int = 0) -> int:
        """Measured on Llamas of TinyLlama's width."""
        # A pipeline of the user's may have a scheme that is none of ours.
        bytes_a_weight = _MEMORY_BYTES_A_WEIGHT.get(scheme, _MEMORY_BYTES_A_WEIGHT["none"])
        bytes_of_tokens = _MEMORY_BYTES_A_WEIGHT_AND_TOKEN * max(0, num_tokens - _MEMORY_TOKENS)
        return round(_MEMORY_BASE_BYTES + (bytes_a_weight + bytes_of_tokens) * num_weights)

    def check(self) -> None:
        """Load Qualcomm's libraries, which is the surest test that they are here, and ExecuTorch's exporter for them.

        Raises:
            BackendError: If they are not, or cannot be used.
        """
        from prgec.backends.qnn.loading import import_exporter

        self.load_runtime()
        import_exporter()

    def load_runtime(self) -> None:
        """The libraries that compile are also the simulator.

        Raises:
            BackendError: If they are not here, or cannot be used.
        """
        from prgec.backends.qnn.loading import load_libraries

        load_libraries()
        # The delegate comes with them, and asks the loader for the libraries above.
        super().load_runtime()

    @contextmanager
    def lowering(self) -> Iterator[None]:
        """Name the SDK to the exporter, keep one HTP session, and keep the libraries quiet."""
        from prgec.backends.qnn.session import session

        with session(self._specs()):
            yield

    def prepare(self, programs: Mapping[str, ExportedProgram]) -> Mapping[str, ExportedProgram]:
        """Qualcomm's rewrites in the ATen dialect; `apply` stays on the CPU and as it is."""
        from prgec.backends.lowering import PARTITIONED
        from prgec.backends.qnn.session import pass_manager

        return {
            name: pass_manager().transform_for_export_pipeline(program) if name in PARTITIONED else program
            for name, program in programs.items()
        }

    def edge_passes(self, program: ExportedProgram) -> Sequence[EdgePass]:
        """Qualcomm's rewrites in the edge dialect."""
        from prgec.backends.qnn.session import edge_passes

        return edge_passes(program, self._specs())

    def partitioners(self) -> Sequence[Partitioner]:
        """Qualcomm's own partitioner, kept off state and loss."""
        from prgec.backends.qnn.partitioner import QnnForwardPartitioner

        return (QnnForwardPartitioner(self._specs()),)

    def why_on_cpu(self, op: str, node: Node, program: ExportedProgram) -> str:
        """By the op's place in the graph."""
        from prgec.backends.qnn.reasons import why_on_cpu

        return why_on_cpu(op, node, program)

    def _specs(self) -> list[Any]:
        from prgec.backends.qnn.session import compile_specs

        return compile_specs(self._soc)
