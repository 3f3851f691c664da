"""Builds the program of a variant, once: a finished program is found again by everything that went into it."""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prgec.backends import load_backend
from prgec.backends.base import Backend
from prgec.backends.lowering import lower
from prgec.compiler.compile import compile_model
from prgec.compiler.frontend.checkpoint import Checkpoint, find_checkpoint
from prgec.compiler.frontend.model import export_loss, load_model
from prgec.compiler.options import CompileOptions
from prgec.compiler.pipelines import default_pipeline
from prgec.compiler.write import write_program
from prgec.core.contract.names import FORWARD_METHOD
from prgec.core.machine.apart import call_apart
from prgec.core.machine.files import write_atomic
from prgec.core.machine.versions import installed_versions
from prgec.lab.bench.feed_copies import FeedCopies
from prgec.lab.bench.options import BenchOptions, Cell
from prgec.lab.bench.sources import sources_sha256
from prgec.lab.bench.stock import stock_backend
from prgec.lab.bench.variants import Branch, Variant
from prgec.passes.infra import Pass
from prgec.passes.lift import lift
from prgec.passes.pipeline import run_pipeline
from prgec.passes.spec import print_pipeline

# Says what a program without manifest is for; a program with this method trains nothing.
BENCH_METHOD = "prgec_bench"


@dataclass(frozen=True)
class Built:
    """A program on disk.

    Attributes:
        path: The .pte.
        file_bytes: Its size.
        compile_s: Seconds from checkpoint to file.
        delegates: Delegates of its forward.
    """

    path: Path
    file_bytes: int
    compile_s: float
    delegates: int


@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """Everything a program depends on; equal recipes are one program, whichever variants and cells ask for it."""

    model: str
    backend: str
    is_stock: bool
    rows: int
    seq_len: int
    num_labels: int
    pipeline: str
    versions: dict[str, str]
    sources: str


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """How a program is built, and where it is then."""

    path: Path
    recipe: _Recipe
    options: CompileOptions
    checkpoint: Checkpoint
    passes: list[Pass]
    backend: Backend


def build_all(variants: Sequence[Variant], cell: Cell, options: BenchOptions, folder: Path) -> dict[str, Built]:
    """Return the program of each variant for `cell`, compiled into `folder` unless it is there already.

    Missing programs are compiled in a process of their own: ExecuTorch's XNNPACK rules remember the last node that they
    refused, and by it a graph with its weights, so that a process which compiles grows with every program.

    Raises:
        PrgecError: One of its subclasses, as `compile_model`.
    """
    found = {each.name: built for each in variants if (built := _find(_plan(each, cell, options, folder)))}
    missing = [each for each in variants if each.name not in found]
    if missing:
        # Not a fork: what was timed before left threads.
        spawn = multiprocessing.get_context("spawn")
        found |= call_apart(spawn, f"building for {cell}", _build_missing, missing, cell, options, folder)
    return found


def _build_missing(variants: Sequence[Variant], cell: Cell, options: BenchOptions, folder: Path) -> dict[str, Built]:
    built = {}
    for variant in variants:
        plan = _plan(variant, cell, options, folder)
        # Two variants may be one program.
        built[variant.name] = _find(plan) or _build(variant, plan)
        gc.collect()
    return built


def _plan(variant: Variant, cell: Cell, options: BenchOptions, folder: Path) -> _Plan:
    compile_options = replace(
        options.compile_options(cell, folder / "model.pte"),
        backend=backend_of(variant, options),
        state=variant.state,
        static=variant.is_stock,
        method=variant.method,
        recompute=variant.recompute,
    )
    name = compile_options.backend
    backend = stock_backend(name) if variant.is_stock else load_backend(name)
    passes = pipeline_of(variant, cell, compile_options, backend)
    checkpoint = find_checkpoint(options.model)
    recipe = _Recipe(
        model=_fingerprint(checkpoint),
        backend=backend.name,
        is_stock=variant.is_stock,
        rows=variant.rows(cell.q, cell.batch_size),
        seq_len=cell.seq_len,
        num_labels=compile_options.num_labels,
        pipeline=print_pipeline(passes),
        versions=installed_versions(),
        sources=sources_sha256(__name__),
    )
    path = folder / f"{_sha256(json.dumps(asdict(recipe), sort_keys=True))[:16]}.pte"
    return _Plan(
        path=path, recipe=recipe, options=compile_options, checkpoint=checkpoint, passes=passes, backend=backend
    )


def _build(variant: Variant, plan: _Plan) -> Built:
    started, path, recipe = time.perf_counter(), plan.path, plan.recipe
    if variant.branch in (Branch.UPDATED, Branch.HOSTED, Branch.DIFFERENTIATED):
        # The pipeline text names only passes of the table, so the compiler can take it.
        into = replace(plan.options, output=path, passes=recipe.pipeline)
        delegates = len(compile_model(into, backend=plan.backend).delegation.delegates)
    else:
        delegates = _build_forward(path, plan.checkpoint, recipe, plan.passes, plan.backend)
    built = Built(path, path.stat().st_size, time.perf_counter() - started, delegates)
    note = {"recipe": asdict(recipe), "compile_s": built.compile_s, "delegates": delegates}
    write_atomic(path.with_suffix(".json"), json.dumps(note, indent=2).encode())
    return built


def backend_of(variant: Variant, options: BenchOptions) -> str:
    """Name of the backend a variant's program is for."""
    return variant.backend or options.backend


def pipeline_of(variant: Variant, cell: Cell, options: CompileOptions, backend: Backend) -> list[Pass]:
    """Passes of a variant: the default ones of the backend, less what it does without."""
    passes: list[Pass] = []
    for each in default_pipeline(options, backend):
        if each.name not in variant.left_out:
            passes.append(each)
        if each.name == "inject-lora-fa" and variant.branch is Branch.FED:
            passes.append(FeedCopies(variant.copies(cell.q)))
    return passes


def _build_forward(path: Path, checkpoint: Checkpoint, recipe: _Recipe, passes: list[Pass], backend: Backend) -> int:
    """Build a program that only computes losses; without a manifest, no driver takes it for one that trains."""
    backend.check()
    # Nothing else refers to the model, so its weights are those of the graph, and go when a pass replaces them.
    program = export_loss(
        load_model(checkpoint),
        num_rows=recipe.rows,
        seq_len=recipe.seq_len,
        num_labels=recipe.num_labels,
        dynamic=backend.dynamic_seq_len,
    )
    run_pipeline(program, passes)
    lowered = lower(backend, {FORWARD_METHOD: lift(program)})
    note = {"trains": False, "model": checkpoint.name, "rows": recipe.rows, "pipeline": recipe.pipeline}
    write_program(path, lowered.finish({BENCH_METHOD: json.dumps(note, sort_keys=True)}))
    return len(lowered.delegation.delegates)


def _find(plan: _Plan) -> Built | None:
    path, recipe = plan.path, plan.recipe
    try:
        note: Mapping[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if note["recipe"] != asdict(recipe):
            return None
        return Built(path, path.stat().st_size, float(note["compile_s"]), int(note["delegates"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _fingerprint(checkpoint: Checkpoint) -> str:
    """Name a checkpoint by what is cheap to read: hashing gigabytes would take as long as some measurements."""
    files = [(each.name, stat.st_size, stat.st_mtime_ns) for each in checkpoint.shards for stat in [each.stat()]]
    return _sha256(json.dumps([checkpoint.name, checkpoint.config, files], sort_keys=True))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
