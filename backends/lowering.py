"""ExportedProgram -> .pte, the same way for every backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.passes import MemoryPlanningPass

from prgec.backends.base import Backend
from prgec.backends.decomposed import decompose
from prgec.backends.delegation import DelegationReport, report
from prgec.backends.needed_passes import only_needed_passes
from prgec.contract.names import (
    EMIT_METHOD,
    EVALUATE_METHOD,
    EXTEND_METHOD,
    FORWARD_METHOD,
    NEXT_TOKENS_METHOD,
    PREFIX_METHOD,
    SIDE_METHOD,
)
from prgec.errors import BackendError, PrgecError

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class Lowered:
    """An edge program with its delegation report, ready to be completed with constants and serialised."""

    edge: EdgeProgramManager
    delegation: DelegationReport

    def finish(
        self, constants: Mapping[str, Any], *, external_constants: bool = False, copies_inputs: bool = True
    ) -> ExecutorchProgramManager:
        """Add constant methods and plan memory.

        Args:
            constants: Constant methods (str, int or tensor) by name.
            external_constants: Keep weights out of the .pte, for a file beside it.
            copies_inputs: Whether a call copies its inputs into memory of the program, or reads them where they are.
        """
        methods = {name: self.edge.exported_program(name) for name in self.edge.methods}
        edge = EdgeProgramManager(methods, constant_methods=dict(constants), compile_config=_EDGE_CONFIG)
        return edge.to_executorch(
            ExecutorchBackendConfig(
                memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True, alloc_graph_input=copies_inputs),
                emit_mutable_buffer_names=True,
                external_constants=external_constants,
            )
        )


# The first of these that a program has is the one it reports of.
PARTITIONED = (
    FORWARD_METHOD,
    EMIT_METHOD,
    SIDE_METHOD,
    EVALUATE_METHOD,
    PREFIX_METHOD,
    NEXT_TOKENS_METHOD,
    EXTEND_METHOD,
)
# Our own ops and int64 arithmetic on sizes are not part of the core ATen opset the IR check knows.
_EDGE_CONFIG = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)


def lower(backend: Backend, programs: Mapping[str, ExportedProgram]) -> Lowered:
    """Lower all methods for one backend; only those with a forward in them are partitioned.

    Raises:
        BackendError: If ExecuTorch or the delegate refuses the graph.
    """
    with backend.lowering(), only_needed_passes():
        prepared = dict(backend.prepare(programs))
        heavy = [name for name in PARTITIONED if name in prepared]
        partitioners = {name: list(backend.partitioners()) for name in heavy}
        try:
            edge = to_edge_transform_and_lower(
                # Partitioners say themselves what they want whole.
                {name: each if partitioners.get(name) else decompose(each) for name, each in prepared.items()},
                transform_passes={name: list(backend.edge_passes(prepared[name])) for name in heavy},
                partitioner=partitioners,
                compile_config=_EDGE_CONFIG,
            )
        except PrgecError:
            raise
        except Exception as error:  # ExecuTorch has no common base class for lowering failures
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            raise BackendError(f"{backend.name}: lowering failed: {reason}") from error
        return Lowered(edge, report(edge.exported_program(heavy[0]), backend.why_on_cpu))
