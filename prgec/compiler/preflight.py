"""Refuses a compilation that cannot end well, before its long part begins: for this machine, or for the device."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from prgec.compiler.frontend.checkpoint import QUANTIZATION_CONFIG, Checkpoint
from prgec.compiler.options import CompileOptions
from prgec.compiler.plan.memory import Memory, memory_of
from prgec.compiler.plan.options import CALIBRATED
from prgec.compiler.plan.rounding import rounding_bytes
from prgec.compiler.plan.rows import packed_weights
from prgec.compiler.plan.shape import ModelShape
from prgec.compiler.plan.source import count_weights, shape_of_checkpoint
from prgec.compiler.plan.units import bytes_text, parse_bytes
from prgec.compiler.plan.workload import Workload
from prgec.core.contract.names import SIDE
from prgec.core.machine.memory import available_memory_bytes, resident_memory_bytes
from prgec.errors import BackendError, CheckpointError, PrgecError, UsageError

if TYPE_CHECKING:
    from prgec.backends.base import Backend

logger = logging.getLogger(__name__)
_GO_ON = "--ignore-memory goes on all the same"


def check_host_memory(backend: Backend, checkpoint: Checkpoint, options: CompileOptions, scheme: str) -> None:
    """Check that this machine has the memory a compilation takes, counting what this process holds already.

    Args:
        backend: Does the lowering.
        checkpoint: The checkpoint; only the headers of its weights are read.
        options: Options of the compilation.
        scheme: How frozen layers are quantised.

    Raises:
        BackendError: If it has not.
    """
    shape = _shape_of(checkpoint)
    is_quantized = QUANTIZATION_CONFIG in checkpoint.config
    given = shape.num_weights if is_quantized and shape is not None else count_weights(checkpoint.shards)
    weights = given
    work = None if shape is None else workload_of(options, shape)
    if shape is not None and work is not None:
        # Gradients multiply with transposed copies of weights, which are weights to the compiler.
        weights += max(0, packed_weights(shape, work) - shape.matrix_weights)
    lowering = backend.memory_bytes(weights, scheme, _num_tokens(options))
    rounding = rounding_bytes(shape, given) if shape is not None and options.rounds_by_prompts else 0
    needed = max(lowering, rounding)
    available = available_memory_bytes() + resident_memory_bytes()
    if needed > available:
        what = f"compiling {checkpoint.name} for {backend.name} takes about {bytes_text(needed)} of memory"
        ways = "free some, or compile on a larger machine"
        if needed > lowering:
            ways += ", or with --rounding nearest"
        elif backend.memory_bytes(weights, scheme) < needed:
            ways += ", or with a smaller --batch-size or --seq-len"
        _refuse(BackendError(f"{what}, and {bytes_text(available)} are free", hint=f"{ways}; {_GO_ON}"), options)


def check_device_memory(checkpoint: Checkpoint, options: CompileOptions) -> Memory | None:
    """Plan a program and check it against what the device has, where that is given.

    Args:
        checkpoint: The model.
        options: Options of the compilation, with T and K.

    Returns:
        Memory of training in the C++ driver; None for a model that is not modelled.

    Raises:
        UsageError: If that is more than `options.memory`, or nobody can say.
    """
    budget = parse_bytes(options.memory) if options.memory else None
    shape = _shape_of(checkpoint)
    work = None if shape is None else workload_of(options, shape)
    if shape is None or work is None:
        if budget is not None:
            _refuse(UsageError(f"--memory cannot be checked: {_why_not(shape)}", hint=_GO_ON), options)
        return None
    planned = memory_of(shape, work)
    if budget is not None and planned.total > budget:
        parts = f"{bytes_text(planned.weights)} of it weights, {bytes_text(planned.activations)} activations"
        parts += f", {bytes_text(planned.cache)} the cache" if planned.cache else ""
        what = f"training takes {bytes_text(planned.total)}, {parts}; --memory is {bytes_text(budget)}"
        hint = f"prgec plan {options.model} --memory {options.memory} says what fits; {_GO_ON}"
        _refuse(UsageError(what, hint=hint), options)
    return planned


def workload_of(options: CompileOptions, shape: ModelShape) -> Workload | None:
    """Return what a plan calls a compilation; None where a plan has no word for it."""
    is_usual = (
        options.targets == ("all-linear",)
        and (options.lora_a is None or options.is_calibrated)
        and options.passes is None
    )
    if not is_usual or options.method == SIDE or options.backend != CALIBRATED or len(options.layers) != 1:
        return None
    is_prge = options.method == "prge"
    prefix = "shared" if is_prge and options.prefix == "auto" and options.layers != ("all",) else options.prefix
    work = Workload(
        method=options.method,
        quantize=options.quantize,
        layers=options.layers[0],
        q=options.q if is_prge else 1,
        batch_size=options.batch_size,
        # Where data will decide T and K, only weights are checked, which depend on neither.
        seq_len=options.seq_len or CompileOptions.seq_len,
        num_labels=options.num_labels or CompileOptions.num_labels,
        rank=options.rank,
        prefix="none" if prefix == "auto" else prefix,
        optimizer=options.optimizer,
        state=options.state,
        group_size=options.group_size,
        accumulates=options.accumulate,
        recompute=options.recompute,
        context=options.context,
        rollouts=options.rollouts,
        quantize_cache=options.quantize_cache,
    )
    try:
        work.trained_blocks(shape)
    except UsageError:
        return None
    return work


def _num_tokens(options: CompileOptions) -> int:
    """Tokens of a call; as many as without data, where data will say how long rows are."""
    copies = 2 * options.q if options.method == "prge" else 1
    return copies * options.batch_size * (options.seq_len or CompileOptions.seq_len)


def _shape_of(checkpoint: Checkpoint) -> ModelShape | None:
    try:
        return shape_of_checkpoint(checkpoint.path, checkpoint.name)
    except CheckpointError as error:
        logger.info("nothing is planned: %s", error)
        return None


def _why_not(shape: ModelShape | None) -> str:
    return (
        "the architecture is not modelled"
        if shape is None
        else "a plan knows --targets all-linear and last:K only, and methods that train"
    )


def _refuse(error: PrgecError, options: CompileOptions) -> None:
    if not options.ignore_memory:
        raise error
    logger.warning("%s", error.what)
