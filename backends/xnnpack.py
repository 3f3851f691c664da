"""XNNPACK: the CPU delegate of phones, boards and desktops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from prgec.backends import IN_PLACE
from prgec.backends.base import Backend

if TYPE_CHECKING:
    from executorch.exir._serialize._named_data_store import NamedDataStore
    from executorch.exir.backend.backend_details import PreprocessResult
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torch.fx import Node

    from prgec.backends.base import EdgePass


# Measured with SmolLM2-135M, and random TinyLlamas of 4 and 10 layers: docs/reports/compile.md.
_MEMORY_BASE_BYTES = 1_000_000_000
_MEMORY_BYTES_A_WEIGHT = {"none": 10.0, "8da8w": 4.6, "8da4w": 4.4}


class XnnpackBackend(Backend):
    """Lowers to XNNPACK with a dynamic T."""

    name: ClassVar[str] = "xnnpack"
    methods: ClassVar[frozenset[str]] = frozenset({"prge", "exact", "shortcut", "side"})
    default_method: ClassVar[str] = "exact"
    dynamic_seq_len: ClassVar[bool] = True
    recomputes: ClassVar[bool] = True
    schemes: ClassVar[frozenset[str]] = frozenset({"8da8w", "8da4w"})
    embedding_bits: ClassVar[frozenset[int]] = frozenset({8, 4})
    route: ClassVar[str] = IN_PLACE
    legality: ClassVar[frozenset[str]] = frozenset(
        {
            "lower-sdpa",
            "lower-eager-attention",
            "layer-norm-to-means",
            "mean-to-linear",
            "rotate-half-to-linear",
            "split-fused-linear",
            "slice-to-linear",
            "pow-to-mul",
            "lower-softplus",
            "cast-to-dequantize",
            "lower-gelu-tanh",
            "label-gather-to-bmm",
            "transpose-to-copy",
            "reshape-to-view",
        }
    )

    def check(self) -> None:
        """The ExecuTorch wheel brings all it needs."""

    def load_runtime(self) -> None:
        """Nothing: it comes with the kernels."""

    def memory_bytes(self, num_weights: int, scheme: str, num_tokens: int = 0) -> int:
        """Measured on random Llamas; tokens make no difference."""
        del num_tokens
        # A pipeline of the user's may have a scheme that is none of ours.
        bytes_a_weight = _MEMORY_BYTES_A_WEIGHT.get(scheme, _MEMORY_BYTES_A_WEIGHT["none"])
        return round(_MEMORY_BASE_BYTES + bytes_a_weight * num_weights)

    def prepare(self, programs: Mapping[str, ExportedProgram]) -> Mapping[str, ExportedProgram]:
        """Nothing changes.

        Raises:
            BackendError: If XNNPACK may take one weight for another.
        """
        from prgec.backends.xnnpack_weights import check_packed_weights

        check_packed_weights(programs)
        return programs

    @staticmethod
    def preprocess(program: ExportedProgram, weights: NamedDataStore) -> PreprocessResult:
        """By XNNPACK's own visitors, without the passes before them that trace the graph again."""
        from prgec.backends.xnnpack_serialize import serialize

        return serialize(program, weights)

    def partitioners(self) -> Sequence[Partitioner]:
        """XNNPACK's own partitioner, kept off the loss."""
        from prgec.backends.xnnpack_partitioner import XnnpackForwardPartitioner

        return (XnnpackForwardPartitioner(),)

    def edge_passes(self, program: ExportedProgram) -> Sequence[EdgePass]:
        """XNNPACK's permute writes its result in order, so a copy after it is redundant."""
        del program
        from prgec.backends.edge_clones import remove_clones_of_permutes

        return (remove_clones_of_permutes,)

    def why_on_cpu(self, op: str, node: Node, program: ExportedProgram) -> str:
        """By the op's place in the graph, else in the words of XNNPACK's partitioner."""
        from prgec.backends.xnnpack_reasons import why_on_cpu

        return why_on_cpu(op, node, program)
