"""One training step as tapes: a few blocks are written out, and more of them are what one more block adds."""

from __future__ import annotations

import functools
from dataclasses import astuple, dataclass, replace

from prgec.compiler.plan.arena import Span, arena_bytes, live_bytes, spans_of
from prgec.compiler.plan.backward import Backward
from prgec.compiler.plan.block import Forward
from prgec.compiler.plan.op import F32
from prgec.compiler.plan.recompute import recompute
from prgec.compiler.plan.shape import ModelShape
from prgec.compiler.plan.tape import Tape
from prgec.compiler.plan.workload import Workload
from prgec.core.contract.names import LAYERS
from prgec.passes.recomputation import checkpoints

# From here on every further block adds what the last one did.
_WRITTEN_OUT = 3
# Gaps of the arena are those of so many blocks, however many there are.
_WITH_ALL_GAPS = 2
_WRITERS = frozenset({"o", "down"})
# Measured: what the runtime keeps of an operation.
_OP_BYTES = 1500


@dataclass(frozen=True)
class StepSizes:
    """The needs of one call of a program.

    Attributes:
        arena_bytes: Intermediate values at the worst moment.
        constant_bytes: Packed matrices: frozen layers, their transposes, A, and small constants.
        multiplies: Multiplications with quantised layers.
        multiplies_f32: All other multiplications of matrices.
        moved_bytes: Bytes that all operations together write.
    """

    arena_bytes: float
    constant_bytes: float
    multiplies: float
    multiplies_f32: float
    moved_bytes: float

    def plus(self, other: StepSizes, times: float = 1.0) -> StepSizes:
        """Add what `other` needs, so many times."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return StepSizes(*(mine + times * theirs for mine, theirs in pairs))


def site_names(shape: ModelShape, work: Workload, *, is_last: bool) -> frozenset[str]:
    """The layers of a trained block that have a branch: all, or of shortcut below the last block the writers."""
    if work.is_frozen:
        return frozenset()
    if work.method == "shortcut" and not is_last:
        return _WRITERS
    return frozenset(each.name for each in shape.linears)


@functools.cache
def step_sizes(shape: ModelShape, work: Workload) -> StepSizes:
    """Return the needs of the first trained block and all later ones in a call of the training method."""
    trained = work.trained_blocks(shape)
    found = _sizes(shape, work, min(trained, _WRITTEN_OUT), 0)
    if trained > _WRITTEN_OUT:
        found = found.plus(found.plus(_sizes(shape, work, _WRITTEN_OUT - 1, 0), -1.0), trained - _WRITTEN_OUT)
        found = replace(found, arena_bytes=found.arena_bytes - _dropped_stream_bytes(shape, work, trained))
    gaps = _gap_bytes(shape, _as_written(shape, work), min(trained, _WITH_ALL_GAPS))
    return replace(found, arena_bytes=found.arena_bytes + gaps)


def _dropped_stream_bytes(shape: ModelShape, work: Workload, trained: int) -> int:
    """Bytes of the residual stream that extrapolation counts too much for so many blocks, where sums are made again."""
    if work.method != "exact" or work.recompute == LAYERS or not shape.family.has_post_norms:
        return 0
    few, more, all_of_them = (_sums_there(2 * each) for each in (_WRITTEN_OUT - 1, _WRITTEN_OUT, trained))
    extrapolated = more + (more - few) * (trained - _WRITTEN_OUT)
    return (extrapolated - all_of_them) * work.rows * work.seq_len * shape.width * F32


def _sums_there(num_sums: int) -> int:
    """Sums of the stream in memory when the backward begins: those kept, and those made again before the last."""
    kept = checkpoints(num_sums)
    return len(kept) + (num_sums - 1 - kept[-1] or kept.step - 1)


@functools.cache
def prefix_sizes(shape: ModelShape, work: Workload) -> StepSizes:
    """Return the needs that the blocks before the first trained one add to a call that runs them.

    They keep nothing, so their intermediate values count once.
    """
    trained = work.trained_blocks(shape)
    below = shape.layers - trained
    if not below:
        return StepSizes(*[0.0] * 5)
    none, one, two = (_sizes(shape, work, min(trained, _WRITTEN_OUT), each) for each in range(3))
    first, more = one.plus(none, -1.0), two.plus(one, -1.0)
    return replace(first.plus(more, below - 1), arena_bytes=max(0.0, first.arena_bytes))


def _sizes(shape: ModelShape, work: Workload, trained: int, below: int) -> StepSizes:
    """Sizes of a step with so many blocks, `below` of them before the first that trains."""
    tape = _written(shape, _as_written(shape, work), trained, below)
    constants = sum(
        elements * (work.weight_bytes(inputs, is_copy) if inputs else F32)
        for (inputs, is_copy), elements in tape.constants
    )
    constants += tape.num_ops * _OP_BYTES
    products = tape.multiplies, tape.multiplies_f32
    return StepSizes(tape.live_bytes, constants, *products, tape.moved_bytes)


@functools.cache
def _gap_bytes(shape: ModelShape, work: Workload, trained: int) -> int:
    """Bytes by which the arena of a step exceeds the values alive in it."""
    tape = _written(shape, work, trained, 0)
    return arena_bytes(tape.spans) - tape.live_bytes


def _as_written(shape: ModelShape, work: Workload) -> Workload:
    """Ways to train that differ in nothing a tape holds are one."""
    prefix = "none" if work.has_gradients or work.prefix == "none" else "shared"
    is_whole = all(each.inputs % work.group_size == 0 for each in shape.linears)
    quantize = "8da8w" if work.is_quantized and is_whole else work.quantize
    return replace(work, layers="all", prefix=prefix, quantize=quantize)


@dataclass(frozen=True)
class _Written:
    """Totals of a tape.

    Attributes:
        spans: Values of its arena.
        live_bytes: Those of them that are alive at the worst moment.
        multiplies: Multiplications with quantised layers.
        multiplies_f32: All other multiplications of matrices.
        moved_bytes: Bytes that all operations write.
        num_ops: Operations.
        constants: Packed elements, as `Tape.constants` has them.
    """

    spans: tuple[Span, ...]
    live_bytes: int
    multiplies: int
    multiplies_f32: int
    moved_bytes: int
    num_ops: int
    constants: tuple[tuple[tuple[int, bool], int], ...]


@functools.cache
def _written(shape: ModelShape, work: Workload, trained: int, below: int) -> _Written:
    """Write out a step."""
    tape = Tape()
    is_shared = below > 0 and work.prefix != "none" and not work.has_gradients
    forward = Forward(tape, shape, work, work.batch_size if is_shared else work.rows)
    stream = tape.put("external", forward.tokens * shape.width)
    for _ in range(below):
        stream = forward.block(stream, frozenset())
    if is_shared:
        forward.rows = work.rows
        stream = tape.put("repeat", forward.tokens * shape.width, stream)
    forward.writes.clear()
    for index in range(trained):
        first_of_last, stream_of_last = len(forward.sites), stream
        stream = forward.block(stream, site_names(shape, work, is_last=index == trained - 1))
        if work.is_frozen:
            tape.keep(forward.at_labels(stream))
    logits = forward.head(stream)
    if work.has_gradients:
        end = len(tape.ops)
        _differentiate(forward, logits, first_of_last, stream_of_last)
        recompute(tape, end, forward.stream, layers=work.recompute == LAYERS)
    constants = tuple(tape.constants().items())
    products = tape.multiplies, tape.multiplies_f32
    spans = tuple(spans_of(tape.ops))
    return _Written(spans, live_bytes(spans), *products, tape.moved_bytes, len(tape.ops), constants)


def _differentiate(forward: Forward, logits: int, first_of_last: int, stream_of_last: int) -> None:
    """Add the backward of a step: of everything, or of the last block, handed down to the writers below it."""
    tape, work, sites = forward.tape, forward.work, forward.sites
    excess = tape.put("softmax", tape.size(logits), logits)
    seed = tape.put("mul", tape.size(logits), tape.put("sub", tape.size(logits), excess))
    if work.method == "exact":
        found = Backward(tape=tape, wrt=sites, seq_len=work.seq_len, head_width=forward.shape.head_width).walk(
            {logits: seed}
        )
        wanted = list(found.values())
    else:
        below, last = sites[:first_of_last], sites[first_of_last:]
        found = Backward(
            tape=tape,
            wrt=[*last, *([stream_of_last] if below else [])],
            seq_len=work.seq_len,
            head_width=forward.shape.head_width,
        ).walk({logits: seed})
        handed_down = found.pop(stream_of_last, None)
        wanted = list(found.values())
        for site, written in zip(below, forward.writes, strict=False):
            assert handed_down is not None
            wanted += (
                Backward(tape=tape, wrt=[site], seq_len=work.seq_len, head_width=forward.shape.head_width)
                .walk({written: handed_down})
                .values()
            )
    for number in wanted:
        tape.keep(number)
