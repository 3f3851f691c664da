"""XNNPACK: the CPU delegate of phones, boards and desktops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from prgec.errors import BackendError

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram

_REASONS = {
    "prge.dual_update": "the state update; it changes memory the delegate must not cache",
    "prge.randn": "the state update; XNNPACK has no random numbers",
    "aten.embedding": "XNNPACK has no table lookup",
    "aten.gather": "XNNPACK has no gather",
    "aten._log_softmax": "the f32 loss",
    "aten.log_softmax": "the f32 loss",
    "executorch_prim.sym_size": "arithmetic on sizes",
    "aten.sym_size": "arithmetic on sizes",
}
_DEFAULT_REASON = "XNNPACK has no such op"


class XnnpackBackend:
    """Lowers to XNNPACK with a dynamic T."""

    name: ClassVar[str] = "xnnpack"
    dynamic_seq_len: ClassVar[bool] = True

    def check(self) -> None:
        """The ExecuTorch wheel brings the delegate; only a broken installation lacks it.

        Raises:
            BackendError: If the runtime was built without it.
        """
        from executorch.runtime import Runtime

        if "XnnpackBackend" not in Runtime.get().backend_registry.registered_backend_names:
            raise BackendError("this ExecuTorch was built without XNNPACK", hint="pip install executorch==1.5.1")

    def partitioners(self) -> Sequence[Partitioner]:
        """XNNPACK's own partitioner."""
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        return (XnnpackPartitioner(),)

    def why_on_cpu(self, op: str) -> str:
        """Known reasons by op; a supported op that stays outside has a form XNNPACK's partitioner refused."""
        if op in _REASONS:
            return _REASONS[op]
        return "XNNPACK takes this op only in other shapes or dtypes" if op in _supported_ops() else _DEFAULT_REASON

    def prepare(self, programs: Mapping[str, ExportedProgram]) -> Mapping[str, ExportedProgram]:
        """Nothing to change."""
        return programs


def _supported_ops() -> frozenset[str]:
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS

    return frozenset(f"aten.{config.target_name.partition('.')[0]}" for config in ALL_PARTITIONER_CONFIGS)
