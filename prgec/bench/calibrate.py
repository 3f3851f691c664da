"""Measures how fast this machine is for a model: one and two of its blocks, with random weights, at several lengths."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prgec.bench.fit import fit_costs
from prgec.bench.job import Job
from prgec.bench.options import Cell
from prgec.bench.steps import Step, make_step
from prgec.bench.variants import VARIANTS
from prgec.compile.compiler import compile_model
from prgec.compile.options import CompileOptions
from prgec.frontend.random_checkpoint import write_random_checkpoint
from prgec.plan.costs import Costs, counts_of
from prgec.plan.families import FAMILIES
from prgec.plan.shape import ModelShape, shape_of_config
from prgec.plan.speed import VARIANTS as PLANNED
from prgec.plan.workload import Workload

# What the others are derived from (prgec.plan.calibration).
SCHEMES = ("none", "8da4w")
WAYS = (("prge", 4, 1), ("exact", 1, 4))
_BLOCKS = (1, 2)
_SHARES = (1, 2, 4)
# A head is a product like others and small beside the blocks: most of it would only take long to compile.
_MOST_VOCAB = 4096
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_FEWEST_STEPS, _MOST_STEPS, _SECONDS = 3, 30, 1.0

Tell = Callable[[str], None]


def calibrate(
    config: Mapping[str, Any], name: str, seq_len: int, num_labels: int, tell: Tell
) -> dict[tuple[str, str], Costs]:
    """Return what a step costs on this machine, by scheme and method.

    Args:
        config: As config.json has it.
        name: What the user called the model.
        seq_len: T of the longest rows; shorter ones are measured too.
        num_labels: K.
        tell: Called with every stage.

    Raises:
        PrgecError: If the blocks cannot be compiled, one of its subclasses.
    """
    total = len(SCHEMES) * len(WAYS) * len(_BLOCKS)
    found: dict[tuple[str, str], list[tuple[Costs, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="prgec-calibrate-") as scratch:
        for number, (work, blocks) in enumerate(_programs(seq_len, num_labels), 1):
            plural = "s" if blocks > 1 else ""
            tell(f"{number}/{total} {blocks} block{plural} of {name}, {work.method}, quantize {work.quantize}")
            steps = _timed_program(slice_config(config, blocks), name, work, Path(scratch))
            found.setdefault((work.quantize, work.method), []).extend(steps)
    return {way: fit_costs(steps) for way, steps in found.items()}


def slice_config(config: Mapping[str, Any], blocks: int) -> dict[str, Any]:
    """Return the configuration of a model that has so many blocks and few tokens, and is as wide."""
    whole = dict(config.get("text_config") or config)
    key = dict(FAMILIES[whole["model_type"]].keys).get("num_hidden_layers", "num_hidden_layers")
    depth = whole[key]
    # What differs from block to block is a list.
    cut = {name: value[:blocks] for name, value in whole.items() if isinstance(value, list) and len(value) == depth}
    return {**whole, **cut, **_SPECIAL, key: blocks, "vocab_size": min(whole["vocab_size"], _MOST_VOCAB)}


def _programs(seq_len: int, num_labels: int) -> Iterator[tuple[Workload, int]]:
    for scheme in SCHEMES:
        for method, q, batch_size in WAYS:
            for blocks in _BLOCKS:
                yield Workload(method, scheme, "all", q, batch_size, seq_len, num_labels), blocks


def _timed_program(config: Mapping[str, Any], name: str, work: Workload, folder: Path) -> list[tuple[Costs, float]]:
    """Compile one program and time it at several lengths."""
    shape = shape_of_config(config, name)
    checkpoint = folder / f"{shape.layers}"
    if not checkpoint.exists():
        write_random_checkpoint(checkpoint, config)
    program = folder / "model.pte"
    options = CompileOptions(
        model=str(checkpoint),
        output=program,
        method=work.method,
        q=work.q,
        batch_size=work.batch_size,
        seq_len=work.seq_len,
        num_labels=work.num_labels,
        quantize=work.quantize,
    )
    compile_model(options)
    lengths = sorted({max(work.num_labels + 1, work.seq_len // share) for share in _SHARES}, reverse=True)
    return [_timed_step(shape, work, length, program) for length in lengths]


def _timed_step(shape: ModelShape, work: Workload, seq_len: int, program: Path) -> tuple[Costs, float]:
    """What a step of shorter rows has, and the seconds it takes."""
    variant = next(VARIANTS[name] for name, method in PLANNED.items() if method == work.method)
    cell = Cell(work.quantize, work.q, work.batch_size, seq_len)
    job = Job(variant, cell, "xnnpack", shape.name, shape.vocab, work.num_labels, ("all",), program)
    as_used = Workload(work.method, work.quantize, "all", work.q, work.batch_size, seq_len, work.num_labels)
    return counts_of(shape, as_used), median_seconds(make_step(job))


def median_seconds(step: Step) -> float:
    """Time a step until a second has passed, after one that does not count."""
    step()
    seconds: list[float] = []
    while len(seconds) < _FEWEST_STEPS or (sum(seconds) < _SECONDS and len(seconds) < _MOST_STEPS):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
