"""The rows of a plan: every way to train that prgec has, with what it takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from prgec.backends import load_backend
from prgec.compiler.plan.memory import Memory, memory_of
from prgec.compiler.plan.op import F32
from prgec.compiler.plan.options import BY_LEARNING, PlanOptions
from prgec.compiler.plan.rounding import rounding_bytes
from prgec.compiler.plan.shape import ModelShape
from prgec.compiler.plan.speed import Speed
from prgec.compiler.plan.step import prefix_sizes, step_sizes
from prgec.compiler.plan.workload import Workload
from prgec.core.contract.names import CHEAP, DEFAULT_OPTIMIZERS, RECOMPUTATIONS

SCHEMES = ("none", "8da8w", "8da4w")
SIDE = "side"
# Queries and examples of a step; all of gradients have one query.
_PRGE_SIZES = ((4, 4), (4, 1), (1, 1))
_GRADIENT_SIZES = ((1, 16), (1, 4), (1, 1))
# Kept prefixes and outputs of blocks are stored in 16 bits.
_KEPT_BYTES = 2
EMBEDDING_BITS = {"none": 0, "8da8w": 8, "8da4w": 4}
_TRAINING_SHARES = (1, 2, 4)


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One way to train, and what it takes.

    Attributes:
        work: The way.
        memory: Peak of a run, with packed weights in memory.
        mapped_bytes: The same where the driver keeps packed weights in a file.
        step_s: Seconds a step; None where nobody measured the scheme.
        run_s: Seconds of all steps.
        file_bytes: Size of the .pte.
        kept_bytes: Disk for kept prefixes, or what a network beside the model learns from: of an example, or of all
            where data are given.
        compile_bytes: Memory that compiling takes on the host; 0 where nobody measured it.
        fits: Whether memory and time are within the budget.
    """

    work: Workload
    memory: Memory
    mapped_bytes: int
    step_s: float | None
    run_s: float | None
    file_bytes: int
    kept_bytes: int
    compile_bytes: int
    fits: bool

    def to_json(self) -> dict[str, Any]:
        """The document `--json` prints of a row."""
        work = self.work
        return {
            "method": work.method,
            "quantize": work.quantize,
            "layers": work.layers,
            "q": work.q,
            "batch_size": work.batch_size,
            "seq_len": work.seq_len,
            "prefix": work.prefix,
            "recompute": work.recompute,
            "peak_bytes": self.memory.total,
            "peak_parts": self.memory.to_json(),
            "mapped_bytes": self.mapped_bytes,
            "step_s": self.step_s,
            "run_s": self.run_s,
            "file_bytes": self.file_bytes,
            "kept_bytes": self.kept_bytes,
            "compile_bytes": self.compile_bytes,
            "fits": self.fits,
        }


def plan_rows(shape: ModelShape, options: PlanOptions, speed: Speed) -> list[PlanRow]:
    """Return a row for every way to train."""
    return [row_of(shape, work, options, speed) for work in workloads(shape, options)]


def workloads(shape: ModelShape, options: PlanOptions) -> Iterator[Workload]:
    """Every way, those that learn most of a row first: method, then layers, then scheme, then rows of a step."""
    for method in BY_LEARNING:
        is_side = method == SIDE
        num_labels, context = (1, 0) if is_side else (options.num_labels, options.context)
        optimizer = DEFAULT_OPTIMIZERS[method]
        for layers in _layer_choices(shape) if method != SIDE else ("all",):
            for quantize in SCHEMES:
                for q, batch_size in _PRGE_SIZES if method == "prge" else _GRADIENT_SIZES:
                    for recompute, prefix in itertools.product(_recomputations(method), _prefixes(method, layers)):
                        yield Workload(
                            method,
                            quantize,
                            layers,
                            q,
                            batch_size,
                            options.seq_len,
                            num_labels,
                            prefix=prefix,
                            optimizer=optimizer,
                            recompute=recompute,
                            context=context,
                            rollouts=0 if is_side else options.rollouts,
                        )


def row_of(shape: ModelShape, work: Workload, options: PlanOptions, speed: Speed) -> PlanRow:
    """Return what one way to train takes."""
    memory = memory_of(shape, work, driver=options.driver)
    mapped = memory_of(shape, work, driver=options.driver, packed_in_file=True)
    step_s = speed.step_s(shape, work)
    run_s = None if step_s is None else step_s * _steps(work, options)
    kept = _KEPT_BYTES * _kept_values(shape, work)
    is_in_time = options.seconds is None or (run_s is not None and run_s <= options.seconds)
    return PlanRow(
        work=work,
        memory=memory,
        mapped_bytes=mapped.total,
        step_s=step_s,
        run_s=run_s,
        file_bytes=file_bytes(shape, work),
        kept_bytes=kept * (options.num_examples or 1),
        compile_bytes=compile_bytes(shape, work, options.backend),
        fits=memory.total <= options.memory and is_in_time,
    )


def _steps(work: Workload, options: PlanOptions) -> int:
    """Calls of a run; a model that stays as it is needs to see its rows once."""
    if work.is_frozen and options.num_examples is not None:
        return -(-options.num_examples // work.batch_size)
    return options.steps


def _kept_values(shape: ModelShape, work: Workload) -> int:
    """Numbers on the disk for an example: its prefix, or the outputs of the blocks at its answer."""
    if work.is_frozen:
        return shape.layers * work.num_labels * shape.width
    return work.seq_len * shape.width if work.prefix == "method" else 0


def file_bytes(shape: ModelShape, work: Workload) -> int:
    """Size of the .pte: matrices, and the embedding in the bits that go with the scheme."""
    bits = EMBEDDING_BITS[work.quantize]
    is_whole = bits and shape.width % work.group_size == 0
    element = bits / 8 + F32 / work.group_size if is_whole else F32
    constants = step_sizes(shape, work).constant_bytes + prefix_sizes(shape, work).constant_bytes
    return round(constants + shape.table_weights * element)


def compile_bytes(shape: ModelShape, work: Workload, backend: str) -> int:
    """Memory that compiling takes: gradients multiply with transposed copies of weights, which count as weights do.

    Weights of 4 bits are rounded by data, as `prgec compile` rounds them where it is given data.
    """
    more = max(0, packed_weights(shape, work) - shape.matrix_weights)
    lowering = load_backend(backend).memory_bytes(shape.num_weights + more, work.quantize, work.rows * work.seq_len)
    is_rounded_by_data = EMBEDDING_BITS[work.quantize] == 4
    return max(lowering, rounding_bytes(shape, shape.num_weights)) if is_rounded_by_data and lowering else lowering


def packed_weights(shape: ModelShape, work: Workload) -> int:
    """Elements of frozen layers in a program, transposed copies included."""
    # Counted where every weight takes as much: copies of 4-bit weights have 8.
    alike = replace(work, quantize="8da8w") if work.is_quantized else work
    constants = step_sizes(shape, alike).constant_bytes + prefix_sizes(shape, alike).constant_bytes
    return round(constants / alike.weight_bytes(alike.group_size))


def _layer_choices(shape: ModelShape) -> list[str]:
    """All blocks, the last half, the last quarter."""
    choices = {"all": None, **{f"last:{shape.layers // share}": None for share in _TRAINING_SHARES[1:]}}
    return [each for each in choices if each != "last:0" and each != f"last:{shape.layers}"]


def _recomputations(method: str) -> tuple[str, ...]:
    """Ways to recompute, the one that keeps most first: each later one takes less memory and more time."""
    return RECOMPUTATIONS if method == "exact" else (CHEAP,)


def _prefixes(method: str, layers: str) -> tuple[str, ...]:
    if layers == "all":
        return ("none",)
    return ("shared", "method") if method == "prge" else ("none", "method")
