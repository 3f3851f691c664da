"""Measures how fast this machine is for a model: one and two of its blocks, with random weights, at several lengths."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prgec.compiler.compile import compile_model
from prgec.compiler.frontend.random_checkpoint import write_random_checkpoint
from prgec.compiler.options import CompileOptions
from prgec.compiler.plan.costs import Costs, counts_of
from prgec.compiler.plan.families import FAMILIES
from prgec.compiler.plan.options import CALIBRATED
from prgec.compiler.plan.shape import shape_of_config
from prgec.compiler.plan.speed import VARIANTS as PLANNED
from prgec.compiler.plan.workload import Workload
from prgec.lab.bench.fit import fit_costs
from prgec.lab.bench.job import Job
from prgec.lab.bench.options import Cell
from prgec.lab.bench.steps import Step, compiled_step
from prgec.lab.bench.variants import VARIANTS
from prgec.runtime.engines.executorch.runtime import open_forward

# The others are derived from these (prgec.compiler.plan.calibration).
SCHEMES = ("none", "8da4w")
WAYS = (("prge", 4, 1), ("exact", 1, 4))
_BLOCKS = (1, 2)
_SHARES = (1, 2, 4)
# A head is a product like others and small beside the blocks: most of it would only take long to compile.
_MOST_VOCAB = 4096
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_FEWEST_ROUNDS, _MOST_ROUNDS, _SECONDS = 3, 20, 8.0

Tell = Callable[[str], None]


def calibrate(
    config: Mapping[str, Any], name: str, seq_len: int, num_labels: int, tell: Tell
) -> dict[tuple[str, str], Costs]:
    """Return what a step costs on this machine, by scheme and method.

    Args:
        config: As config.json has it.
        name: The user's name of the model.
        seq_len: T of the longest rows; shorter ones are measured too.
        num_labels: K.
        tell: Called with every stage.

    Raises:
        PrgecError: If the blocks cannot be compiled, one of its subclasses.
    """
    found: dict[tuple[str, str], Costs] = {}
    with tempfile.TemporaryDirectory(prefix="prgec-calibrate-") as scratch:
        for number, work in enumerate(_ways(seq_len, num_labels)):
            steps: list[tuple[Costs, Step]] = []
            for blocks in _BLOCKS:
                done = len(_BLOCKS) * number + blocks
                what = f"{blocks} block{'s' if blocks > 1 else ''} of {name}, {work.method}, quantize {work.quantize}"
                tell(f"{done}/{len(_BLOCKS) * len(SCHEMES) * len(WAYS)} {what}")
                steps += _compiled(slice_config(config, blocks), name, work, Path(scratch))
            found[work.quantize, work.method] = fit_costs(_timed(steps))
    return found


def slice_config(config: Mapping[str, Any], blocks: int) -> dict[str, Any]:
    """Return the configuration of a model that has so many blocks and few tokens, and is as wide."""
    whole = dict(config.get("text_config") or config)
    key = dict(FAMILIES[whole["model_type"]].keys).get("num_hidden_layers", "num_hidden_layers")
    depth = whole[key]
    # A value that differs from block to block is a list.
    cut = {name: value[:blocks] for name, value in whole.items() if isinstance(value, list) and len(value) == depth}
    return {**whole, **cut, **_SPECIAL, key: blocks, "vocab_size": min(whole["vocab_size"], _MOST_VOCAB)}


def _ways(seq_len: int, num_labels: int) -> Iterator[Workload]:
    for scheme in SCHEMES:
        for method, q, batch_size in WAYS:
            yield Workload(method, scheme, "all", q, batch_size, seq_len, num_labels)


def _compiled(config: Mapping[str, Any], name: str, work: Workload, folder: Path) -> Iterator[tuple[Costs, Step]]:
    """Compile one program; yields what a step has and the step itself, for rows of several lengths."""
    shape = shape_of_config(config, name)
    checkpoint, program = folder / f"{shape.layers}", folder / f"{shape.layers}-{work.method}-{work.quantize}.pte"
    if not checkpoint.exists():
        write_random_checkpoint(checkpoint, config)
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
    forward = open_forward(program, CALIBRATED)
    program.unlink()  # it is mapped
    variant = next(VARIANTS[name] for name, method in PLANNED.items() if method == work.method)
    for seq_len in sorted({max(work.num_labels + 1, work.seq_len // share) for share in _SHARES}):
        cell = Cell(work.quantize, work.q, work.batch_size, seq_len)
        job = Job(
            variant=variant,
            cell=cell,
            backend=CALIBRATED,
            model=name,
            vocab_size=shape.vocab,
            num_labels=work.num_labels,
            layers=("all",),
            program=program,
        )
        yield counts_of(shape, replace(work, seq_len=seq_len)), compiled_step(job, forward)


def _timed(steps: list[tuple[Costs, Step]]) -> list[tuple[Costs, float]]:
    """Let steps take turns for some seconds, and take the shortest time of each: others can only make it longer."""
    best = [float("inf")] * len(steps)
    started, rounds = time.perf_counter(), 0
    while rounds <= _FEWEST_ROUNDS or (rounds < _MOST_ROUNDS and time.perf_counter() - started < _SECONDS):
        for number, (_, step) in enumerate(steps):
            before = time.perf_counter()
            step()
            # The first call of a program allocates what later ones reuse.
            if rounds:
                best[number] = min(best[number], time.perf_counter() - before)
        rounds += 1
    return [(counts, seconds) for (counts, _), seconds in zip(steps, best, strict=True)]
