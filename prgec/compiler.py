"""Checkpoint in, self-training .pte out: the stages of a compilation in order."""

from __future__ import annotations

import importlib.metadata
import logging
import operator
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
    PREFIX_METHOD,
    STATE_SUFFIX,
    TOKENIZER_METHOD,
    VERSION_METHOD,
    Manifest,
    Site,
)
from prgec.data.lengths import fit_options
from prgec.errors import CheckpointError, UsageError
from prgec.frontend.checkpoint import Checkpoint, find_checkpoint
from prgec.frontend.model import export_loss, load_model, weights_sha256
from prgec.options import CompileOptions
from prgec.passes import pass_table
from prgec.passes.extract_apply import extract_apply
from prgec.passes.extract_next_tokens import extract_next_tokens
from prgec.passes.extract_prefix import extract_prefix, find_shared_prefix
from prgec.passes.infra import Pass
from prgec.passes.pipeline import PassRecord, check_order, dump_to, run_pipeline
from prgec.passes.program import GraphProgram
from prgec.passes.saved import save_program
from prgec.passes.spec import parse_pipeline, print_pipeline
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


def default_pipeline(options: CompileOptions, backend: Backend) -> str:
    """Pipeline text for `options`; the order is that of the pass table, less what the backend does not need."""
    chosen: dict[str, dict[str, Any]] = {
        "inject-lora-fa": {
            "targets": options.targets,
            "layers": options.layers,
            "rank": options.rank,
            "alpha": options.alpha,
            "seed": options.a_seed,
        },
        "share-prefix": {"q": options.q},
        "dualize": {"q": options.q},
        "insert-self-update": {"state": options.state},
        "quantize-base": {"scheme": options.quantize, "group": options.group_size},
        "quantize-embedding": {"bits": options.quantize_embedding, "group": options.group_size},
    }
    shares = options.prefix in ("shared", "method") or (options.prefix == "auto" and options.layers != ("all",))
    has_kernels = options.rng == "kernel" or (options.rng == "auto" and backend.has_kernels)
    unused = {name for name, is_on in (("share-prefix", shares), ("fuse-update", has_kernels),
                                       ("decompose-noise", not has_kernels),
                                       ("quantize-base", options.quantize != "none"),
                                       ("quantize-embedding", options.quantize_embedding)) if not is_on}  # fmt: skip
    needed = {
        name: cls
        for name, cls in pass_table().items()
        if name not in unused and (not cls.is_legality or name in backend.legality)
    }
    return print_pipeline([cls(**chosen.get(name, {})) for name, cls in needed.items()])


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
    backend = backend or load_backend(options.backend)
    passes = parse_pipeline(options.passes or default_pipeline(options, backend), pass_table())
    check_order(passes)
    clock = _Clock(progress)
    with clock.stage("load"):
        backend.check()
        source = _load(options)
        options = fit_options(options, Tokenizer.unpack(source.tokenizer), source.max_positions)
    with clock.stage("export"):
        dynamic = backend.dynamic_seq_len and not options.static
        program = _export(options, source, dynamic)
    with clock.stage("passes"):
        records = run_pipeline(program, passes, dump_to(options.dump_passes) if options.dump_passes else None)
        programs = _methods(program, options)
        manifest = _manifest(options, source, passes, sites_of(program), dynamic)
        manifest = _with_prefix(manifest, programs)
    with clock.stage("lower"):
        executable, delegation = _lower(backend, programs, manifest, source.tokenizer)
    with clock.stage("write"):
        file_bytes = write_program(options.output, executable)
    return CompileResult(options.output, manifest, delegation, tuple(records), file_bytes, clock.seconds)


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
        quantize=_optional(passes, "quantize-base", "scheme", "none"),
        quantize_embedding=_optional(passes, "quantize-embedding", "bits", 0),
        generate=options.generate,
        sites=sites,
        pipeline=print_pipeline(passes),
        base_sha256=source.base_sha256,
        versions=_versions(),
        pad_token_id=Tokenizer.unpack(source.tokenizer).pad_id,
    )


def _option(passes: Sequence[Pass], name: str, option: str) -> Any:
    found = [each for each in passes if each.name == name]
    if len(found) != 1:
        raise UsageError(f"the pipeline has {name} {len(found)} times; a program that trains itself needs it once")
    return getattr(found[0], option)


def _optional(passes: Sequence[Pass], name: str, option: str, default: Any) -> Any:
    return next((getattr(each, option) for each in passes if each.name == name), default)


def _versions() -> dict[str, str]:
    packages = ("torch", "executorch", "torchao", "transformers")
    return {"prgec": __version__, **{name: importlib.metadata.version(name) for name in packages}}


def _methods(program: GraphProgram, options: CompileOptions) -> dict[str, GraphProgram]:
    """Split the finished graph into the methods of the contract."""
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
    backend: Backend, programs: dict[str, GraphProgram], manifest: Manifest, tokenizer: bytes
) -> tuple[Any, DelegationReport]:
    lowered = lower(backend, {name: program.to_exported() for name, program in programs.items()})
    constants = {
        VERSION_METHOD: CONTRACT_VERSION,
        MANIFEST_METHOD: manifest.to_json(),
        DELEGATION_METHOD: lowered.delegation.to_json(),
        TOKENIZER_METHOD: torch.frombuffer(bytearray(tokenizer), dtype=torch.uint8),
    }
    return lowered.finish(constants), lowered.delegation


def write_program(path: Path, program: Any) -> int:
    """Write a finished ExecuTorch program and return its size in bytes.

    A temporary file is renamed in the end, so that `path` is either the old file or a complete new one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            program.write_to_file(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path.stat().st_size


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
