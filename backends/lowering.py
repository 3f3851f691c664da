"""ExportedProgram -> .pte, the same way for every backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.passes import MemoryPlanningPass

from prgec.backends import AUTO_ROUTE, IN_PLACE
from prgec.backends.base import Backend
from prgec.backends.delegation import report
from prgec.backends.delegation_report import DelegationReport
from prgec.backends.edge.convert import EDGE_CONFIG, to_edge
from prgec.backends.edge.delegate import delegate
from prgec.backends.edge.execution import to_executorch
from prgec.core.contract.names import (
    DECODE_METHOD,
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
    from executorch.exir.backend.partitioner import Partitioner
    from torch._ops import OpOverload
    from torch.export import ExportedProgram
    from torch.fx import Node


Part: TypeAlias = Callable[[int, int, str], None]


def _ignore(done: int, total: int, detail: str) -> None:
    del done, total, detail


@dataclass(frozen=True)
class Lowered:
    """An edge program with its delegation report, ready to be completed with constants and serialised.

    Attributes:
        edge: Lowered methods.
        methods: Their names, in the order that they have in the file; `edge` keeps them as a set.
        delegation: The calls in each delegate of the first one.
        route: How they were lowered.
    """

    edge: EdgeProgramManager
    methods: tuple[str, ...]
    delegation: DelegationReport
    route: str

    def finish(
        self, constants: Mapping[str, Any], *, external_constants: bool = False, copies_inputs: bool = True
    ) -> ExecutorchProgramManager:
        """Add constant methods and plan memory.

        Args:
            constants: Constant methods (str, int or tensor) by name.
            external_constants: Keep weights out of the .pte, for a file beside it.
            copies_inputs: Whether a call copies its inputs into memory of the program, or reads them where they are.
        """
        config = ExecutorchBackendConfig(
            memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True, alloc_graph_input=copies_inputs),
            emit_mutable_buffer_names=True,
            external_constants=external_constants,
        )
        methods = {name: self.edge.exported_program(name) for name in self.methods}
        if self.route == IN_PLACE:
            named_data = self.edge._named_data_store.get_named_data_store_output()
            return to_executorch(methods, named_data, constants, config)
        edge = EdgeProgramManager(methods, constant_methods=dict(constants), compile_config=EDGE_CONFIG)
        return edge.to_executorch(config)


# The first of these that a program has is the one it reports of.
PARTITIONED = (
    FORWARD_METHOD,
    EMIT_METHOD,
    SIDE_METHOD,
    EVALUATE_METHOD,
    PREFIX_METHOD,
    NEXT_TOKENS_METHOD,
    EXTEND_METHOD,
    DECODE_METHOD,
)


def lower(
    backend: Backend, programs: Mapping[str, ExportedProgram], route: str = AUTO_ROUTE, part: Part = _ignore
) -> Lowered:
    """Lower all methods for one backend; only those with a forward in them are partitioned.

    Args:
        backend: Target.
        programs: Methods in the dialect of `torch.export`, writes in place; in-place lowering consumes their graphs.
        route: `IN_PLACE`, `STOCK` for ExecuTorch's own, or `AUTO_ROUTE` for the one that the backend names.
        part: Called as parts of the work begin, with how many are done, how many there are, and what it is.

    Raises:
        BackendError: If ExecuTorch or the delegate refuses the graph.
    """
    route = backend.route if route == AUTO_ROUTE else route
    with backend.lowering():
        prepared = dict(backend.prepare(programs))
        heavy = [name for name in PARTITIONED if name in prepared]
        try:
            edge = (_in_place if route == IN_PLACE else _stock)(backend, prepared, heavy, part)
        except PrgecError:
            raise
        except Exception as error:  # ExecuTorch has no common base class for lowering failures
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            raise BackendError(f"{backend.name}: lowering failed: {reason}") from error
        delegation = report(edge.exported_program(heavy[0]), backend.why_on_cpu)
        return Lowered(edge, tuple(prepared), delegation, route)


def _stock(
    backend: Backend, programs: Mapping[str, ExportedProgram], heavy: Sequence[str], part: Part
) -> EdgeProgramManager:
    """ExecuTorch's own route: several traces of each graph."""
    num_nodes = sum(len(each.graph.nodes) for each in programs.values())
    part(0, 0, f"ExecuTorch's own route, {num_nodes:,} nodes")
    return to_edge_transform_and_lower(
        dict(programs),
        transform_passes={name: list(backend.edge_passes(programs[name])) for name in heavy},
        partitioner={name: list(backend.partitioners()) for name in heavy},
        compile_config=EDGE_CONFIG,
    )


def _in_place(
    backend: Backend, programs: Mapping[str, ExportedProgram], heavy: Sequence[str], part: Part
) -> EdgeProgramManager:
    """Edits of the graphs where they are."""
    partitioners = {name: backend.partitioners() if name in heavy else () for name in programs}
    passes = {name: backend.edge_passes(programs[name]) for name in heavy}
    total = len(programs) + len(heavy)
    edges = {}
    for done, (name, program) in enumerate(programs.items()):
        part(done, total, f"{name} to the edge dialect, {len(program.graph.nodes):,} nodes")
        edges[name] = to_edge(program, *_whole(program, partitioners[name]))
    if backend.preprocess is None:
        edge = EdgeProgramManager(dict(edges), compile_config=EDGE_CONFIG)
        if any(passes.values()):
            edge = edge.transform(passes)
        chosen = {name: found[0] for name, found in partitioners.items() if found}
        return edge.to_backend(chosen) if chosen else edge
    weights = NamedDataStore()
    for done, name in enumerate(heavy, start=len(programs)):
        part(done, total, f"delegates of {name}, {len(edges[name].graph.nodes):,} nodes")
        for edit in passes[name]:
            edit(edges[name].graph_module)
        for partitioner in partitioners[name]:
            delegate(edges[name], partitioner, partial(backend.preprocess, weights=weights))
    return EdgeProgramManager(dict(edges), compile_config=EDGE_CONFIG)


def _whole(
    program: ExportedProgram, partitioners: Sequence[Partitioner]
) -> tuple[frozenset[OpOverload], Callable[[Node], bool]]:
    """Ops that a delegate takes undecomposed, and whether it takes one call of them."""
    answers = [each.ops_to_not_decompose(program) for each in partitioners]
    checks = [check for _, check in answers if check is not None]
    return frozenset(op for ops, _ in answers for op in ops), lambda node: all(check(node) for check in checks)
