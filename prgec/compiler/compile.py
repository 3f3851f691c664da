"""Checkpoint in, self-training .pte out: the stages of a compilation in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from prgec.backends import AUTO_ROUTE, IN_PLACE, STOCK, load_backend
from prgec.backends.base import Backend
from prgec.compiler.check import check_options
from prgec.compiler.describe import manifest_of
from prgec.compiler.extend import finish_reader, traced_readers
from prgec.compiler.frontend.model import export_loss
from prgec.compiler.given_a import a_constants, prompts_for, run_giving_a
from prgec.compiler.methods import contract_methods, described_by
from prgec.compiler.options import CompileOptions
from prgec.compiler.progress import STAGES, Listener, Part, Progress, ignore
from prgec.compiler.resolve import Resolved, resolve
from prgec.compiler.result import CompileResult
from prgec.compiler.write import write_program
from prgec.core.contract.arrays import State
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import DELEGATION_METHOD, HOST_STATE, MANIFEST_METHOD, TOKENIZER_METHOD, VERSION_METHOD
from prgec.core.machine.memory import map_large_blocks
from prgec.passes.lift import lift
from prgec.passes.program import GraphProgram, give_own_memory
from prgec.passes.record import PassRecord
from prgec.passes.saved import save_program
from prgec.passes.sites import sites_of

if TYPE_CHECKING:
    from prgec.backends.delegation_report import DelegationReport

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """A compilation before lowering.

    Attributes:
        methods: Graphs of the contract's methods by name; they share their state.
        manifest: Manifest of the program.
        tokenizer: The packed tokenizer.
        passes: Effect of each pass.
        lora_a: A of every site, where it was given and not drawn.
    """

    methods: dict[str, GraphProgram]
    manifest: Manifest
    tokenizer: bytes
    passes: tuple[PassRecord, ...]
    lora_a: State = field(default_factory=dict)


def compile_model(
    options: CompileOptions, listener: Listener = ignore, *, backend: Backend | None = None
) -> CompileResult:
    """Compile a checkpoint.

    Args:
        options: Options of the compilation.
        listener: Called as stages and their parts begin.
        backend: Lowers instead of the row of the backend table that `options` names; of the same name.

    Raises:
        PrgecError: One of its subclasses; nothing is left at `options.output`.
    """
    check_options(options)
    backend = backend or _backend_of(options)
    clock = _Clock(listener)
    graphs = _build(options, backend, clock)
    with clock.stage("lower"):
        executable, delegation = _lower(backend, graphs, options.lowering, clock.part)
    with clock.stage("write"):
        file_bytes = write_program(options.output, executable)
    return CompileResult(
        path=options.output,
        manifest=graphs.manifest,
        delegation=delegation,
        passes=graphs.passes,
        file_bytes=file_bytes,
        seconds=clock.seconds,
    )


def build_graphs(options: CompileOptions) -> Graphs:
    """Run every stage before the lowering; the graphs run in PyTorch as they are.

    Raises:
        PrgecError: One of its subclasses.
    """
    check_options(options)
    return _build(options, _backend_of(options), _Clock(ignore))


def _backend_of(options: CompileOptions) -> Backend:
    return load_backend(options.backend, **options.settings)


def _build(given: CompileOptions, backend: Backend, clock: _Clock) -> Graphs:
    map_large_blocks()
    with clock.stage("load"):
        resolved, model = resolve(given, backend)
    with clock.stage("export"):
        readers = traced_readers(resolved.options, model)
        program = export_loss(
            model,
            num_rows=resolved.options.num_rows,
            seq_len=resolved.options.seq_len,
            num_labels=resolved.options.num_labels,
            dynamic=resolved.dynamic,
            head=resolved.source.head,
        )
        # The weights are those of the graph now, and go when a pass replaces them.
        del model
        if given.save_program is not None:
            save_program(program, given.save_program)
    with clock.stage("passes"):
        return _rewrite(resolved, backend, program, readers, clock.part)


def _rewrite(
    resolved: Resolved, backend: Backend, program: GraphProgram, readers: Mapping[str, GraphProgram], part: Part
) -> Graphs:
    """Run the passes, and cut the finished graph into the methods of the contract."""
    options, passes = resolved.options, resolved.passes
    prompts = prompts_for(options, passes, resolved.tokenizer)
    given, records = run_giving_a(program, passes, options, resolved.adapter, prompts, part)
    manifest = manifest_of(resolved, backend, sites=sites_of(program), given=given, prompts=prompts)
    methods = contract_methods(program, options, manifest.state_access)
    for reader in readers.values():
        finish_reader(reader, program, passes, manifest, given)
    methods |= readers
    return Graphs(
        methods=methods,
        manifest=described_by(manifest, methods, passes),
        tokenizer=resolved.source.tokenizer,
        passes=tuple(records),
        lora_a=given,
    )


def _lower(backend: Backend, graphs: Graphs, route: str, part: Part) -> tuple[Any, DelegationReport]:
    # Imported here: ExecuTorch takes as long to import as a small model to compile, and export needs none of it.
    from prgec.backends.edge.core_form import UnknownOpError
    from prgec.backends.lowering import Lowered, lower

    manifest = graphs.manifest
    give_own_memory(graphs.methods.values())

    def lowered_by(route: str) -> Lowered:
        methods = graphs.methods.items()
        traced = {name: lift(each) if route == IN_PLACE else each.to_exported() for name, each in methods}
        return lower(backend, traced, route, part)

    try:
        lowered = lowered_by(backend.route if route == AUTO_ROUTE else route)
    except UnknownOpError as unknown:
        if route != AUTO_ROUTE:
            raise
        logger.warning("%s; lowering with ExecuTorch's own traces instead, which takes longer", unknown.what)
        lowered = lowered_by(STOCK)
    constants = {
        VERSION_METHOD: manifest.contract_version,
        MANIFEST_METHOD: manifest.to_json(),
        DELEGATION_METHOD: lowered.delegation.to_json(),
        TOKENIZER_METHOD: torch.frombuffer(bytearray(graphs.tokenizer), dtype=torch.uint8),
        **a_constants(graphs.lora_a),
    }
    # State and caches that the host keeps are read where they are: a copy of an input would be as large.
    copies_inputs = manifest.state != HOST_STATE and not manifest.context
    finished = lowered.finish(constants, external_constants=backend.has_data_file, copies_inputs=copies_inputs)
    return finished, lowered.delegation


class _Clock:
    """Reports stages and their parts, and keeps the times of stages."""

    def __init__(self, listener: Listener) -> None:
        self.seconds: dict[str, float] = {}
        self._listener = listener
        self._stage = STAGES[0]

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._stage = name
        self._listener(Progress(stage=name))
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        logger.info("stage %s took %.1f s", name, self.seconds[name])

    def part(self, done: int, total: int, detail: str) -> None:
        """Report that a part of the stage begins after `done` of `total`."""
        self._listener(Progress(stage=self._stage, done=done, total=total, detail=detail))
