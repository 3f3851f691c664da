"""The passes a compilation runs: those the user names, or which rows of the pass table, with which options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from prgec.backends.base import Backend
from prgec.compiler.options import AUTO_ROUNDING, WEIGHT_ONLY_BITS, CompileOptions
from prgec.compiler.rules import BACKEND_RULES
from prgec.core.contract.names import GPTQ, HOST_STATE, LAYERS, NEAREST, POLYAK, SIDE
from prgec.passes import pass_table
from prgec.passes.cast_to_dequantize import CastToDequantize
from prgec.passes.decompose_noise import DecomposeNoise
from prgec.passes.decompose_optimizer import DecomposeOptimizer
from prgec.passes.differentiate import Differentiate
from prgec.passes.dualize import Dualize
from prgec.passes.fuse_update import FuseUpdate
from prgec.passes.hoist_updates import HoistUpdates
from prgec.passes.infra import Pass, Role
from prgec.passes.inject_lora_fa import InjectLoraFa
from prgec.passes.insert_optimizer import InsertOptimizer
from prgec.passes.insert_self_update import InsertSelfUpdate
from prgec.passes.narrow_weights import NarrowWeights
from prgec.passes.pipeline import check_order
from prgec.passes.quantize_base import QuantizeBase
from prgec.passes.quantize_embedding import QuantizeEmbedding
from prgec.passes.rematerialize import Rematerialize
from prgec.passes.share_prefix import SharePrefix
from prgec.passes.spec import parse_pipeline

P = TypeVar("P", bound=Pass)


def pipeline_of(options: CompileOptions, backend: Backend) -> tuple[Pass, ...]:
    """Passes that `options` name, or those for them, in an order that works.

    Raises:
        UsageError: If they name no pipeline, or the backend has no such quantisation or dtype.
    """
    passes = parse_pipeline(options.passes, pass_table()) if options.passes else default_pipeline(options, backend)
    check_order(passes)
    return passes


def default_pipeline(options: CompileOptions, backend: Backend) -> tuple[Pass, ...]:
    """Passes for `options`; the order is that of the pass table, less what the backend does not need.

    Raises:
        UsageError: If the backend has no such quantisation or dtype.
    """
    for rule in BACKEND_RULES:
        rule.check(options, backend)
    chosen = {type(each): each for each in _configured(options, backend)}
    unused = _unused(options, backend)
    return tuple(
        chosen.get(kind) or kind()
        for name, kind in pass_table().items()
        if kind not in unused and (not kind.is_legality or name in backend.legality | _needed(options))
    )


def _configured(options: CompileOptions, backend: Backend) -> tuple[Pass, ...]:
    """Passes that take options, in no order."""
    only_writers = options.method == "shortcut"
    return (
        InjectLoraFa(
            targets=options.targets,
            rank=options.rank,
            alpha=options.alpha,
            seed=options.a_seed,
            layers=options.layers,
            only_writers=only_writers,
        ),
        Differentiate(
            options.method, _loss_scale(options) if backend.is_half else 1.0, backend.is_half, options.label_weights
        ),
        Rematerialize(options.recompute == LAYERS),
        InsertOptimizer(
            rule=options.optimizer,
            clip=options.clip_norm,
            decay=options.weight_decay,
            polyak=_polyak(options),
            accumulate=options.accumulate,
            state=options.state,
        ),
        SharePrefix(options.q if options.method == "prge" else 0),
        Dualize(options.q),
        InsertSelfUpdate(options.state),
        FuseUpdate(spread=backend.recomputes),
        QuantizeBase(options.quantize, options.group_size, _rounding(options)),
        QuantizeEmbedding(options.quantize_embedding, options.group_size),
        NarrowWeights(
            _dtype(options, backend), WEIGHT_ONLY_BITS.get(options.quantize, NarrowWeights.bits), options.group_size
        ),
    )


def _rounding(options: CompileOptions) -> str:
    """The rounding somebody named; else GPTQ where there are prompts, and 4 bits."""
    if options.rounding != AUTO_ROUNDING:
        return options.rounding
    return GPTQ if options.rounds_by_prompts else NEAREST


def _polyak(options: CompileOptions) -> float:
    """The share somebody named, or the optimizer's own; one that nobody knows is refused by the pass."""
    return POLYAK.get(options.optimizer, InsertOptimizer.polyak) if options.polyak is None else options.polyak


def _unused(options: CompileOptions, backend: Backend) -> set[type[Pass]]:
    """Passes that these options have no work for."""
    is_hosts = options.state == HOST_STATE
    has_kernels = options.rng == "kernel" or (options.rng == "auto" and backend.has_kernels)
    is_used: dict[type[Pass], bool] = {
        SharePrefix: options.prefix in ("shared", "method")
        or (options.prefix == "auto" and options.layers != ("all",)),
        Rematerialize: backend.recomputes,
        HoistUpdates: not is_hosts,
        FuseUpdate: has_kernels and not is_hosts,
        DecomposeNoise: not has_kernels and not is_hosts,
        DecomposeOptimizer: not has_kernels and not is_hosts,
        CastToDequantize: bool(options.quantize_cache),
        QuantizeBase: options.quantize != "none" and options.quantize not in WEIGHT_ONLY_BITS,
        QuantizeEmbedding: bool(options.quantize_embedding),
        NarrowWeights: _dtype(options, backend) != "f32",
    }
    unused = {kind for kind, is_on in is_used.items() if not is_on}
    if options.method == SIDE:
        return unused | _with_role(Role.TRAINING, Role.MEASURED_LOSSES, Role.GRADIENTS)
    unused |= _with_role(Role.SIDE_TUNING)
    if options.method == "prge":
        return unused | _with_role(Role.GRADIENTS)
    # One row an example: there is nothing to share, only something to keep.
    return unused | _with_role(Role.MEASURED_LOSSES) | ({SharePrefix} if options.prefix != "method" else set())


def _with_role(*roles: Role) -> set[type[Pass]]:
    return {kind for kind in pass_table().values() if kind.role in roles}


def _needed(options: CompileOptions) -> frozenset[str]:
    """Legality passes that a method needs on every backend."""
    return frozenset() if options.method in ("prge", SIDE) else Differentiate.needs


def _loss_scale(options: CompileOptions) -> float:
    """The power of two that takes the mean over the labels of a step off again: what is left of it is at most 2.

    Gradients of a sum are as large as those of one label, whatever a step holds; docs/qnn.md has what that leaves.
    """
    # Data that decide K are read after the first check of a pipeline, which is then repeated.
    num_labels = options.num_labels or 1
    return 2.0 ** math.ceil(math.log2(options.batch_size * num_labels))


def _dtype(options: CompileOptions, backend: Backend) -> str:
    return backend.dtypes[0] if options.dtype == "auto" else options.dtype


def scheme_of(passes: Sequence[Pass]) -> str:
    """Return the name of the scheme of the frozen layers, as `--quantize` spells it."""
    narrow, base = first_of(passes, NarrowWeights), first_of(passes, QuantizeBase)
    weight_only = {bits: name for name, bits in WEIGHT_ONLY_BITS.items()}
    if narrow is not None and narrow.bits in weight_only:
        return weight_only[narrow.bits]
    return base.scheme if base else "none"


def first_of(passes: Sequence[Pass], kind: type[P]) -> P | None:
    """Return the first pass of a kind; None where the pipeline has none."""
    return next((each for each in passes if isinstance(each, kind)), None)
