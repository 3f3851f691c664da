"""XNNPACK: the CPU delegate of phones, boards and desktops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from prgec.errors import BackendError

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram

    from prgec.backends.base import EdgePass

_LOSS = "the f32 loss"
_LABELS = "one-hot rows of the label positions; XNNPACK has no integers"
_SIZES = "arithmetic on sizes"
_REASONS = {
    "prge.dual_update": "the state update; it changes memory that a delegate would cache",
    "prge.randn": "the state update; XNNPACK has no random numbers",
    "aten.copy_": "the state update; it changes memory that a delegate would cache",
    "aten.embedding": "XNNPACK has no table lookup",
    "aten.slice": "XNNPACK slices only fixed shapes; tables are cut to T here",
    "aten.eq": _LABELS,
    "aten.unsqueeze": _LABELS,
    "aten._to": _LABELS,
    "aten.cat": "the causal mask, one copy for each head of a group",
    "aten._log_softmax": _LOSS,
    "aten.gather": _LOSS,
    "aten.where": _LOSS,
    "aten.ne": _LOSS,
    "aten.sum": _LOSS,
    "aten.neg": _LOSS,
    "aten.div": _LOSS,
    "aten.squeeze": _LOSS,
    "aten.clamp": _LOSS,
    "aten.scalar_tensor": _LOSS,
    "aten.sym_size": _SIZES,
}
_DEFAULT_REASON = "XNNPACK has no such op"


class XnnpackBackend:
    """Lowers to XNNPACK with a dynamic T."""

    name: ClassVar[str] = "xnnpack"
    dynamic_seq_len: ClassVar[bool] = True
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
            "lower-gelu-tanh",
            "label-gather-to-bmm",
            "transpose-to-copy",
            "reshape-to-view",
        }
    )

    def check(self) -> None:
        """The ExecuTorch wheel brings the delegate; only a broken installation lacks it.

        Raises:
            BackendError: If the runtime was built without it.
        """
        from executorch.runtime import Runtime

        if "XnnpackBackend" not in Runtime.get().backend_registry.registered_backend_names:
            raise BackendError("this ExecuTorch was built without XNNPACK", hint="pip install executorch==1.5.1")

    def partitioners(self) -> Sequence[Partitioner]:
        """XNNPACK's own partitioner, kept off the loss."""
        from prgec.backends.xnnpack_partitioner import ForwardPartitioner

        return (ForwardPartitioner(),)

    def edge_passes(self) -> Sequence[EdgePass]:
        """XNNPACK's permute writes its result in order, so a copy behind it is one too many."""
        from prgec.backends.edge_clones import remove_clones_of_permutes

        return (remove_clones_of_permutes,)

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
