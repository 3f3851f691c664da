"""How much memory training takes: the one function that compile, run, doctor, bench and plan ask.

Letters: N rows, T tokens, K label positions, V vocabulary, D width, r rank.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from prgec.compiler.plan.op import F32
from prgec.compiler.plan.shape import ModelShape
from prgec.compiler.plan.step import prefix_sizes, site_names, step_sizes
from prgec.compiler.plan.workload import Workload

# Memory of a process besides the program, and its number of copies of B, with gradients and with prge: measured at 1M
# and 1.1B parameters, and of cpp at 135M, too. Steps of prge are kept as numbers in the journal, which the C++ driver
# writes without a copy of B. `bench` is the bare process of `prgec bench`, with torch, without data, tokenizer and
# snapshots.
_DRIVERS = {"cpp": (1_000_000, 1.4, 0.2), "python": (50_000_000, 2.2, 2.2), "bench": (156_000_000, 0.0, 0.0)}
DRIVERS = tuple(_DRIVERS)
# A tokenizer once it is parsed: 261 to 377 measured, of vocabularies of 30,522 to 262,144.
_PARSED_TOKEN_BYTES = 330
_TOKEN_BYTES = 8
# One tensor beside B and its gradient for each running mean.
_MOMENTS = {"norm": 0, "momentum": 1, "adamw": 2}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak memory that no file backs, by what holds it.

    Attributes:
        weights: Packed frozen layers and constants.
        state: Trained weights, the copies a call perturbs, gradients and running means.
        activations: Intermediate values of the delegate.
        tables: Values around the delegate: embedded tokens, masks, one-hot rows, logits.
        cache: Keys and values of a program that reads a text on.
        driver: The process itself, with its snapshots of B and, in Python, its tokenizer.
    """

    weights: int
    state: int
    activations: int
    tables: int
    cache: int
    driver: int

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.weights + self.state + self.activations + self.tables + self.cache + self.driver

    def to_json(self) -> dict[str, int]:
        """Parts and total."""
        return {**asdict(self), "total": self.total}


def memory_of(shape: ModelShape, work: Workload, *, driver: str = "cpp", packed_in_file: bool = False) -> Memory:
    """Return the peak of a training run.

    Args:
        shape: The model.
        work: How it is trained.
        driver: cpp, python, or bench.
        packed_in_file: Whether packed weights are mapped from a file, as drivers can have it: then the system may drop
            them, and they do not count.
    """
    step, prefix = step_sizes(shape, work), prefix_sizes(shape, work)
    own_bytes, of_gradients, of_prge = _DRIVERS[driver]
    snapshots = of_gradients if work.has_gradients else of_prge
    own_bytes += _PARSED_TOKEN_BYTES * shape.vocab if driver == "python" else 0
    state = site_elements(shape, work) * F32
    return Memory(
        weights=0 if packed_in_file else round(step.constant_bytes + prefix.constant_bytes),
        state=round(_copies_of_state(work) * state),
        activations=round(step.arena_bytes + prefix.arena_bytes),
        tables=_tables(shape, work),
        # Layers with a window count in full: the cache is not a ring buffer.
        cache=2 * shape.layers * shape.kv_heads * work.context * (1 + work.rollouts) * _cache_row(shape, work),
        driver=round(own_bytes + snapshots * state),
    )


def _cache_row(shape: ModelShape, work: Workload) -> int:
    """Bytes of a head's key of one position: in 8 bits with a scale of its own."""
    return shape.head_width + F32 if work.quantize_cache else shape.head_width * F32


def site_elements(shape: ModelShape, work: Workload) -> int:
    """Elements of B of all sites together."""
    trained = work.trained_blocks(shape)
    last, others = (
        sum(each.outputs for each in shape.linears if each.name in site_names(shape, work, is_last=is_last))
        for is_last in (True, False)
    )
    return work.rank * (last + (trained - 1) * others)


def _copies_of_state(work: Workload) -> int:
    """How many times the size of B the state takes."""
    if work.has_gradients:
        return 2 + _MOMENTS[work.optimizer] + work.accumulates
    return {"seeded": work.q + 1, "host": 2 * work.q + 1, "dual": 4 * work.q + 4}[work.state]


def _tables(shape: ModelShape, work: Workload) -> int:
    """Bytes in ExecuTorch's own memory while the delegate runs."""
    rows, seq_len = work.rows, work.seq_len
    has_prefix = work.trained_blocks(shape) < shape.layers
    embedded_rows = work.batch_size if has_prefix and work.prefix != "none" else rows
    embedded = embedded_rows * seq_len * shape.width
    # A mask has a copy for each query head of a group.
    group = shape.heads // shape.kv_heads
    masks = shape.num_masks(seq_len) * (group if group > 1 else 1) * seq_len**2
    one_hot = rows * work.num_labels * seq_len
    logits = rows * work.num_labels * shape.vocab * (2 if work.has_gradients else 1)
    # Outputs of every block at the label positions: one by one, and joined.
    emitted = 2 * rows * shape.layers * work.num_labels * shape.width if work.is_frozen else 0
    return (embedded + masks + one_hot + logits + emitted) * F32 + rows * seq_len * _TOKEN_BYTES
