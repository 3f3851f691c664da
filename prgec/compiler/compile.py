"""Checkpoint in, self-training .pte out: the stages of a compilation in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from prgec.backends import AUTO_ROUTE, IN_PLACE, STOCK, load_backend
from prgec.backends.base import Backend
from prgec.compiler.check import check_options
from prgec.compiler.describe import manifest_of, scheme_of
from prgec.compiler.extend import finish_reader, traced_readers
from prgec.compiler.fingerprint import prefix_sha256
from prgec.compiler.flags import named_by_flags
from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import export_loss
from prgec.compiler.given_a import a_constants, hash_of, hash_of_prompts, options_for, prompts_for, run_giving_a
from prgec.compiler.lengths import fit_options
from prgec.compiler.methods import contract_methods, with_sizes
from prgec.compiler.options import CompileOptions, repeating_text
from prgec.compiler.pipelines import pipeline_of
from prgec.compiler.preflight import check_device_memory, check_host_memory
from prgec.compiler.progress import STAGES, Listener, Part, Progress, ignore
from prgec.compiler.result import CompileResult
from prgec.compiler.source import Source, load_source
from prgec.compiler.write import write_program
from prgec.core.contract.arrays import State
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import (
    DELEGATION_METHOD,
    HOST_STATE,
    MANIFEST_METHOD,
    NO_FINGERPRINT,
    PREFIX_METHOD,
    TOKENIZER_METHOD,
    VERSION_METHOD,
)
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.formats.peft import read_peft
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


def _build(options: CompileOptions, backend: Backend, clock: _Clock) -> Graphs:
    map_large_blocks()
    said = options
    adapter = read_peft(options.lora_a) if options.lora_a and not options.is_calibrated else None
    options = options_for(options, adapter) if adapter else options
    passes = pipeline_of(options, backend)
    with clock.stage("load"):
        backend.check()
        checkpoint = find_checkpoint(options.model)
        check_host_memory(backend, checkpoint, options, scheme_of(passes))
        if not options.data:
            # Data say T and K, but only through a tokenizer.
            check_device_memory(checkpoint, options)
        source = load_source(options)
        options = fit_options(options, Tokenizer.unpack(source.tokenizer), source.max_positions)
        passes = pipeline_of(options, backend)
        planned = check_device_memory(checkpoint, options)
    with clock.stage("export"):
        dynamic = backend.dynamic_seq_len and not options.static
        readers = traced_readers(options, source)
        program = _export(options, source, dynamic)
    with clock.stage("passes"):
        # The author of a pipeline knows passes by name.
        with nullcontext() if options.passes else named_by_flags():
            tokenizer = Tokenizer.unpack(source.tokenizer)
            prompts = prompts_for(options, passes, tokenizer)
            given, records = run_giving_a(program, passes, options, adapter, prompts, clock.part)
        manifest = manifest_of(options, source, passes, sites_of(program), dynamic)
        methods = contract_methods(program, options, manifest.state_access)
        for reader in readers.values():
            finish_reader(reader, program, passes, manifest, given)
        methods |= readers
        manifest = with_sizes(manifest, methods)
        manifest = replace(
            manifest,
            soc=backend.soc,
            versions={**manifest.versions, **backend.versions()},
            data_sha256=NO_FINGERPRINT if backend.has_data_file else "",
            a_sha256=hash_of(given),
            prompts_sha256=hash_of_prompts(prompts),
            planned_bytes=planned.total if planned is not None else 0,
            config=repeating_text(
                replace(said, seq_len=options.seq_len, num_labels=options.num_labels, answers=options.answers),
                source.checkpoint.name,
            ),
        )
        if PREFIX_METHOD in methods:
            manifest = replace(manifest, prefix_sha256=prefix_sha256(manifest, passes))
    return Graphs(methods=methods, manifest=manifest, tokenizer=source.tokenizer, passes=tuple(records), lora_a=given)


def _export(options: CompileOptions, source: Source, dynamic: bool) -> GraphProgram:
    assert source.model is not None
    program = export_loss(
        source.model,
        num_rows=options.num_rows,
        seq_len=options.seq_len,
        num_labels=options.num_labels,
        dynamic=dynamic,
        head=source.head,
    )
    source.model = None
    if options.save_program is not None:
        save_program(program, options.save_program)
    return program


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
