"""Lowers to OpenVINO's CPU plug-in in f32, with updates and loss around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from prgec.backends.base import Backend

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torch.fx import Node


class OpenvinoCpuBackend(Backend):
    """Lowers the whole forward, embedding included, and the gradients to one delegate."""

    name: ClassVar[str] = "openvino"
    methods: ClassVar[frozenset[str]] = frozenset({"prge", "exact", "shortcut", "side"})
    default_method: ClassVar[str] = "exact"
    schemes: ClassVar[frozenset[str]] = frozenset({"w8a16", "w4a16"})
    legality: ClassVar[frozenset[str]] = frozenset({"lower-sdpa", "lower-eager-attention", "label-gather-to-bmm"})

    def check(self) -> None:
        """Load OpenVINO and see it compute, and import its frontend.

        Raises:
            BackendError: If it is not here, or does not compute in f32.
        """
        from prgec.backends.openvino.libraries import import_module

        self.load_runtime()
        import_module("openvino.frontend.pytorch.fx_decoder")

    def load_runtime(self) -> None:
        """A machine that can compile can also run.

        Raises:
            BackendError: If it is not here, or does not compute in f32.
        """
        from prgec.backends.openvino.libraries import load_libraries
        from prgec.backends.openvino.precision import check_computes_in_f32

        load_libraries()
        check_computes_in_f32()

    def found(self) -> Mapping[str, str]:
        """The version, and where its libraries are."""
        from prgec.backends.openvino.libraries import library_folder, version

        return {"version": version(), "folder": str(library_folder()), "precision": "f32, shown by a product"}

    def versions(self) -> Mapping[str, str]:
        """The version whose format of models the delegate holds."""
        from prgec.backends.openvino.libraries import version

        return {"openvino": version()}

    def partitioners(self) -> Sequence[Partitioner]:
        """Ours, by the list of ops of OpenVINO's PyTorch frontend."""
        from prgec.backends.openvino.partitioner import partitioner

        return (partitioner(),)

    def why_on_cpu(self, op: str, node: Node, program: ExportedProgram) -> str:
        """By the op's place in the graph."""
        from prgec.backends.forward_reasons import why_on_cpu

        return why_on_cpu(op, node, program, "OpenVINO's PyTorch frontend has no such op")
