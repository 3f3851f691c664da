"""Checkpoint in, self-training .pte out: the stages of a compilation in order."""

from __future__ import annotations

import importlib.metadata
import logging
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from prgec import __version__
from prgec.backends import load_backend
from prgec.backends.base import Backend
from prgec.backends.delegation import DelegationReport
from prgec.backends.lowering import lower
from prgec.contract import (
    APPLY_METHOD,
    CONTRACT_VERSION,
    DELEGATION_METHOD,
    FORWARD_METHOD,
    FROZEN_SUFFIX,
    HIDDEN_INPUT,
    MANIFEST_METHOD,
    NEXT_TOKENS_METHOD,
    NO_FINGERPRINT,
    PREFIX_METHOD,
    STATE_SUFFIX,
    TOKENIZER_METHOD,
    VERSION_METHOD,
    Manifest,
    Site,
)
from prgec.data.lengths import fit_options
from prgec.driver.runtime import State
from prgec.errors import CheckpointError, UsageError
from prgec.frontend.checkpoint import Checkpoint, find_checkpoint
from prgec.frontend.model import export_loss, load_model, weights_sha256
from prgec.given_a import a_constants, give_a, hash_of, options_for, read_given
from prgec.options import WEIGHT_ONLY_BITS, CompileOptions
from prgec.passes import pass_table
from prgec.passes.extract_apply import extract_apply
from prgec.passes.extract_next_tokens import extract_next_tokens
from prgec.passes.extract_prefix import extract_prefix, find_shared_prefix
from prgec.passes.infra import Pass
from prgec.passes.pipeline import PassRecord, check_order, dump_to, run_pipeline
from prgec.passes.program import GraphProgram
from prgec.passes.saved import save_program
from prgec.passes.spec import parse_pipeline, print_pipeline
from prgec.pipelines import default_pipeline
from prgec.preflight import check_memory
from prgec.program_file import write_program
from prgec.tokenizer import Tokenizer, pack_tokenizer

logger = logging.getLogger(__name__)

STAGES = ("load", "export", "passes", "lower", "write")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class CompileResult:
    """A finished compilation.

    Attributes:
        path: The .pte.
        manifest: What it says of itself.
        delegation: Delegates and CPU ops of the forward.
        passes: What each pass did.
        file_bytes: Size of the .pte.
        seconds: Wall-clock time by stage.
    """

    path: Path
    manifest: Manifest
    delegation: DelegationReport
    passes: tuple[PassRecord, ...]
    file_bytes: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Graphs:
    """A compilation before lowering.

    Attributes:
        methods: Graphs of the contract's methods by name; they share their state.
        manifest: What the program will say of itself.
        tokenizer: The packed tokenizer.
        passes: What each pass did.
        lora_a: A of every site, where it was given and not drawn.
    """

    methods: dict[str, GraphProgram]
    manifest: Manifest
    tokenizer: bytes
    passes: tuple[PassRecord, ...]
    lora_a: State = field(default_factory=dict)


def compile_model(
    options: CompileOptions, progress: Progress = lambda stage: None, *, backend: Backend | None = None
) -> CompileResult:
    """Compile a checkpoint.

    Args:
        options: What to compile and how.
        progress: Called with the name of each stage (`STAGES`) as it starts.
        backend: Lowers instead of the row of the backend table that `options` names; of the same name.

    Raises:
        PrgecError: One of its subclasses; nothing is left behind at `options.output`.
    """
    options.check()
    backend = backend or _backend_of(options)
    clock = _Clock(progress)
    graphs = _build(options, backend, clock)
    manifest = graphs.manifest
    with clock.stage("lower"):
        executable, delegation = _lower(backend, graphs.methods, manifest, graphs.tokenizer, graphs.lora_a)
    with clock.stage("write"):
        file_bytes = write_program(options.output, executable)
    return CompileResult(options.output, manifest, delegation, graphs.passes, file_bytes, clock.seconds)


def build_graphs(options: CompileOptions) -> Graphs:
    """Run every stage in front of the lowering; the graphs run in PyTorch as they are.

    Raises:
        PrgecError: One of its subclasses.
    """
    options.check()
    return _build(options, _backend_of(options), _Clock(lambda stage: None))


def _backend_of(options: CompileOptions) -> Backend:
    return load_backend(options.backend, **({"soc": options.soc} if options.soc else {}))


def _build(options: CompileOptions, backend: Backend, clock: _Clock) -> Graphs:
    adapter = read_given(options.lora_a) if options.lora_a else None
    options = options_for(options, adapter) if adapter else options
    passes = parse_pipeline(options.passes or default_pipeline(options, backend), pass_table())
    check_order(passes)
    with clock.stage("load"):
        backend.check()
        source = _load(options)
        check_memory(backend, source.checkpoint.name, source.model)
        options = fit_options(options, Tokenizer.unpack(source.tokenizer), source.max_positions)
    with clock.stage("export"):
        dynamic = backend.dynamic_seq_len and not options.static
        program = _export(options, source, dynamic)
    with clock.stage("passes"):
        records = run_pipeline(program, passes, dump_to(options.dump_passes) if options.dump_passes else None)
        given = give_a(program, sites_of(program), adapter) if adapter else {}
        manifest = _manifest(options, source, passes, sites_of(program), dynamic)
        methods = _methods(program, options, manifest.state_access == "buffers")
        manifest = _with_prefix(manifest, methods)
        manifest = replace(manifest, soc=backend.soc, versions={**manifest.versions, **backend.versions()},
                           data_sha256=NO_FINGERPRINT if backend.has_data_file else "",
                           a_sha256=hash_of(given))  # fmt: skip
    return Graphs(methods, manifest, source.tokenizer, tuple(records), given)


def sites_of(program: GraphProgram) -> tuple[Site, ...]:
    """Trained layers of a program in the order of their noise index, that is, of their first use."""
    sites: dict[str, Site] = {}
    for node in program.graph.find_nodes(op="get_attr"):
        if str(node.target).endswith(FROZEN_SUFFIX):
            name = str(node.target).removesuffix(FROZEN_SUFFIX)
            state = operator.attrgetter(name + STATE_SUFFIX)(program.module)
            in_features, out_features = int(node.meta["val"].shape[-1]), int(state.shape[-1])
            sites.setdefault(name, Site(name, len(sites), in_features, out_features))
    return tuple(sites.values())


@dataclass
class _Source:
    """What was read from the checkpoint; the model is dropped once it is traced."""

    checkpoint: Checkpoint
    tokenizer: bytes
    base_sha256: str
    vocab_size: int
    max_positions: int | None
    model: torch.nn.Module | None


def _load(options: CompileOptions) -> _Source:
    checkpoint = find_checkpoint(options.model)
    tokenizer = pack_tokenizer(checkpoint.path)
    model = load_model(checkpoint)
    config: Any = model.config
    longest = getattr(config, "max_position_embeddings", None)
    longest = longest if isinstance(longest, int) else None
    if longest is not None and options.seq_len > longest:
        raise UsageError(f"--seq-len is {options.seq_len}, but the model knows {longest} positions")
    vocab_size = int(config.vocab_size)
    _check_vocabulary(Tokenizer.unpack(tokenizer), vocab_size, checkpoint)
    return _Source(checkpoint, tokenizer, weights_sha256(model), vocab_size, longest, model)


def _check_vocabulary(tokenizer: Tokenizer, vocab_size: int, checkpoint: Checkpoint) -> None:
    """Refuse a tokenizer of another model; tokens added beyond the table (Gemma 3 has one) are only warned of."""
    base, whole = (tokenizer.backend.get_vocab_size(with_added_tokens=added) for added in (False, True))
    if base > vocab_size:
        raise CheckpointError(f"the tokenizer has {base} tokens, the checkpoint's vocabulary {vocab_size}",
                              where=checkpoint.path, hint="the tokenizer may belong to another model")  # fmt: skip
    if whole > vocab_size:
        logger.warning("%d added tokens lie beyond the checkpoint's vocabulary of %d: rows must not use them",
                       whole - vocab_size, vocab_size)  # fmt: skip


def _export(options: CompileOptions, source: _Source, dynamic: bool) -> GraphProgram:
    assert source.model is not None
    program = export_loss(
        source.model,
        num_rows=options.num_rows,
        seq_len=options.seq_len,
        num_labels=options.num_labels,
        dynamic=dynamic,
    )
    source.model = None
    if options.save_program is not None:
        save_program(program, options.save_program)
    return program


def _manifest(
    options: CompileOptions, source: _Source, passes: Sequence[Pass], sites: tuple[Site, ...], dynamic: bool
) -> Manifest:
    if not sites:
        hint = "keep inject-lora-fa, dualize and insert-self-update in --passes"
        raise UsageError("the pipeline trains nothing", hint=hint)
    return Manifest(
        model=source.checkpoint.name,
        architecture=source.checkpoint.architecture,
        backend=options.backend,
        q=_option(passes, "dualize", "q"),
        batch_size=options.num_rows // (2 * _option(passes, "dualize", "q")),
        seq_len=options.seq_len,
        dynamic_seq_len=dynamic,
        num_labels=options.num_labels,
        vocab_size=source.vocab_size,
        rank=_option(passes, "inject-lora-fa", "rank"),
        alpha=_option(passes, "inject-lora-fa", "alpha"),
        a_seed=_option(passes, "inject-lora-fa", "seed"),
        state=_option(passes, "insert-self-update", "state"),
        quantize=_quantisation(passes),
        quantize_embedding=_optional(passes, "quantize-embedding", "bits", 0),
        state_access="outputs" if any(each.name == "return-state" for each in passes) else "buffers",
        generate=options.generate,
        sites=sites,
        pipeline=print_pipeline(passes),
        base_sha256=source.base_sha256,
        versions=_versions(),
        pad_token_id=_pad_id(source),
    )


def _pad_id(source: _Source) -> int:
    """The tokenizer's pad token, unless the embedding has no such row; nothing ever attends to padding."""
    pad_id = Tokenizer.unpack(source.tokenizer).pad_id
    return pad_id if pad_id < source.vocab_size else 0


def _option(passes: Sequence[Pass], name: str, option: str) -> Any:
    found = [each for each in passes if each.name == name]
    if len(found) != 1:
        raise UsageError(f"the pipeline has {name} {len(found)} times; a program that trains itself needs it once")
    return getattr(found[0], option)


def _quantisation(passes: Sequence[Pass]) -> str:
    """Name of the scheme of the frozen layers, as `--quantize` spells it."""
    bits = _optional(passes, "narrow-weights", "bits", 16)
    weight_only = next((name for name, width in WEIGHT_ONLY_BITS.items() if width == bits), None)
    return weight_only or str(_optional(passes, "quantize-base", "scheme", "none"))


def _optional(passes: Sequence[Pass], name: str, option: str, default: Any) -> Any:
    return next((getattr(each, option) for each in passes if each.name == name), default)


def _versions() -> dict[str, str]:
    packages = ("torch", "executorch", "torchao", "transformers")
    return {"prgec": __version__, **{name: importlib.metadata.version(name) for name in packages}}


def _methods(program: GraphProgram, options: CompileOptions, reads_buffers: bool) -> dict[str, GraphProgram]:
    """Split the finished graph into the methods of the contract; there is one where methods cannot share buffers."""
    if not reads_buffers:
        if options.prefix == "method" or options.generate:
            raise UsageError(f"--backend {options.backend} makes programs of one method; leave out --prefix method and "
                             "--generate")  # fmt: skip
        return {FORWARD_METHOD: program}
    methods = {FORWARD_METHOD: program, APPLY_METHOD: extract_apply(program)}
    if options.prefix == "method":
        if find_shared_prefix(program) is None:
            hint = "choose --layers last:K with K less than the number of layers"
            raise UsageError("there is no block before the first trained layer", hint=hint)
        methods[PREFIX_METHOD] = extract_prefix(program)
    if options.generate:
        methods[NEXT_TOKENS_METHOD] = extract_next_tokens(program)
    return methods


def _with_prefix(manifest: Manifest, methods: dict[str, GraphProgram]) -> Manifest:
    forward = methods[FORWARD_METHOD]
    if PREFIX_METHOD in methods:
        hidden = forward.placeholder(HIDDEN_INPUT)
        assert hidden is not None
        return replace(manifest, prefix="method", hidden_size=int(hidden.meta["val"].shape[-1]))
    return replace(manifest, prefix="shared" if find_shared_prefix(forward) is not None else "none")


def _lower(
    backend: Backend, programs: dict[str, GraphProgram], manifest: Manifest, tokenizer: bytes, given_a: State
) -> tuple[Any, DelegationReport]:
    lowered = lower(backend, {name: program.to_exported() for name, program in programs.items()})
    constants = {
        VERSION_METHOD: CONTRACT_VERSION,
        MANIFEST_METHOD: manifest.to_json(),
        DELEGATION_METHOD: lowered.delegation.to_json(),
        TOKENIZER_METHOD: torch.frombuffer(bytearray(tokenizer), dtype=torch.uint8),
        **a_constants(given_a),
    }
    return lowered.finish(constants, external_constants=backend.has_data_file), lowered.delegation


class _Clock:
    """Announces stages and keeps their times."""

    def __init__(self, progress: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._progress(name)
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        logger.info("stage %s took %.1f s", name, self.seconds[name])
