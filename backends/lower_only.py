"""Targets that programs can be lowered for on any machine, and that no machine of ours can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from prgec.backends.base import Backend
from prgec.errors import BackendError

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

    from prgec.core.contract.manifest import Manifest


class LowerOnlyBackend(Backend):
    """Makes programs in f32 with a fixed T, and names what can run them.

    Attributes:
        delegate: Name ExecuTorch registers the delegate by, where it was built with it.
        needs: The machine that runs the programs, as in "programs run on ...".
    """

    delegate: ClassVar[str]
    needs: ClassVar[str]

    @classmethod
    def details(cls, manifest: Manifest) -> Sequence[str]:
        """The machine that the program needs, and that it was not tried."""
        del manifest
        return (f"runs on {cls.needs}; not tried",)

    def found(self) -> Mapping[str, str]:
        """The limit of this backend: it lowers, but cannot run here."""
        return {"lower only": f"programs run on {self.needs}; not tried"}

    def load_runtime(self) -> None:
        """There is nothing to load: ExecuTorch has the delegate built in, or not.

        Raises:
            BackendError: If it has not, as everywhere the wheel for Linux is used.
        """
        from executorch.extension.pybindings import _C as bindings

        if self.delegate not in bindings._get_registered_backend_names():
            raise BackendError(
                f"programs for --backend {self.name} run on {self.needs}",
                hint="compile with --backend xnnpack to train here",
            )

    def why_on_cpu(self, op: str, node: Node, program: ExportedProgram) -> str:
        """By the op's place in the graph."""
        from prgec.backends.forward_reasons import why_on_cpu

        return why_on_cpu(op, node, program, f"{self.name} has no such op in this shape or dtype")
