"""Other ways to train: back-propagation and MeZO over all weights, by the formula of a paper and corrected.

The paper is "On-Device Fine-Tuning via Backprop-Free Zeroth-Order Optimization" (arXiv 2511.11362), section 2.
Letters as there: b bytes a number, B rows, L blocks, N tokens of context, D width, H heads, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from prgec.compiler.plan.memory import memory_of
from prgec.compiler.plan.options import BY_LEARNING
from prgec.compiler.plan.shape import ModelShape, shape_of_config
from prgec.compiler.plan.source import known_models
from prgec.compiler.plan.workload import Workload
from prgec.core.contract.names import DEFAULT_OPTIMIZERS

_HALF = 2
_F32 = 4
# Adam's two running means in f32, for each trained weight.
_ADAM_BYTES = 8
# The paper's share of intermediate values that a forward holds at once (section 3).
_PAPER_SHARE = 0.15


@dataclass(frozen=True)
class OtherRow:
    """Memory of another way to train.

    Attributes:
        name: Name of the way.
        peak_bytes: Its peak.
        fits: Whether that is within the budget.
        largest: The largest well-known model of the family that fits; empty for none.
    """

    name: str
    peak_bytes: int
    fits: bool
    largest: str

    def to_json(self) -> dict[str, Any]:
        """The document `--json` prints of a row."""
        return dict(vars(self))


class _Bytes(Protocol):
    def __call__(self, shape: ModelShape, rows: int, tokens: int) -> float: ...


def other_rows(shape: ModelShape, batch_size: int, seq_len: int, memory: int) -> list[OtherRow]:
    """Return a row for every other way, at B rows of T tokens."""
    family = family_of(shape)
    rows = []
    for name, needed in OTHER_WAYS.items():
        takes = functools.partial(needed, rows=batch_size, tokens=seq_len)
        peak = round(takes(shape))
        rows.append(OtherRow(name, peak, peak <= memory, largest_of(family, takes, memory)))
    return rows


def largest_of(family: list[ModelShape], needed: Callable[[ModelShape], float], memory: int) -> str:
    """Name of the largest model that a way to train fits with; empty for none."""
    fitting = [each for each in family if needed(each) <= memory]
    return max(fitting, key=lambda each: each.num_weights).name if fitting else ""


def family_of(shape: ModelShape) -> list[ModelShape]:
    """The well-known models of the same `model_type`, and the model itself."""
    known = (shape_of_config(config, name) for name, config in known_models().items())
    others = [each for each in known if each.model_type == shape.model_type and each.name != shape.name]
    return [*others, shape]


def largest_by_method(shape: ModelShape, memory: int, work: Workload, driver: str) -> Iterator[tuple[str, str]]:
    """For each method with 4-bit weights and one row, the largest well-known model of the family that fits."""
    family = family_of(shape)
    for method in BY_LEARNING:
        sizes = (1, 1, work.seq_len, work.num_labels)
        least = Workload(method, "8da4w", "all", *sizes, optimizer=DEFAULT_OPTIMIZERS[method])

        def needed(each: ModelShape, least: Workload = least) -> float:
            return memory_of(each, least, driver=driver).total

        yield method, largest_of(family, needed, memory)


def _paper_weights(shape: ModelShape) -> float:
    """W = 12 b L D^2 + 2 b V D: full attention, an MLP of 4 D, an untied head."""
    return 12 * _HALF * shape.layers * shape.width**2 + 2 * _HALF * shape.vocab * shape.width


def _paper_activations(shape: ModelShape, rows: int, tokens: int) -> float:
    """A = B L N D [2 + 16 b + (2 b + 1) N H / D], masks of dropout included."""
    per_token = 2 + 16 * _HALF + (2 * _HALF + 1) * tokens * shape.heads / shape.width
    return rows * shape.layers * tokens * shape.width * per_token


def _paper_backward(shape: ModelShape, rows: int, tokens: int) -> float:
    return 2 * _paper_weights(shape) + _paper_activations(shape, rows, tokens)


def _paper_mezo(shape: ModelShape, rows: int, tokens: int) -> float:
    return _paper_weights(shape) + _PAPER_SHARE * _paper_activations(shape, rows, tokens)


def _weights(shape: ModelShape) -> float:
    return _HALF * shape.num_weights


def _kept_by_block(shape: ModelShape, rows: int, tokens: int, *, is_flash: bool) -> float:
    """Numbers that a block keeps for its backward, without dropout.

    Inputs of two norms and of all layers, both sides of the activation, and what attention needs again.
    """
    queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    inner = (4 if shape.family.is_gated else 2) * shape.inner
    per_token = 4 * shape.width + 2 * queries + 2 * keys + inner
    # Scores after the softmax; flash attention computes them again, from one number a row.
    per_token += shape.heads * (1 if is_flash else tokens)
    return _HALF * rows * tokens * per_token


def _logits(shape: ModelShape, rows: int, tokens: int) -> float:
    """In f32 at every position, with their gradient."""
    return 2 * _F32 * rows * tokens * shape.vocab


def _trained_in_full(shape: ModelShape) -> float:
    """Weights, gradients and Adam's means."""
    return 2 * _weights(shape) + _ADAM_BYTES * shape.num_weights


def _backward(shape: ModelShape, rows: int, tokens: int) -> float:
    kept = shape.layers * _kept_by_block(shape, rows, tokens, is_flash=False)
    return _trained_in_full(shape) + kept + _logits(shape, rows, tokens)


def _checkpointed(shape: ModelShape, rows: int, tokens: int, *, is_flash: bool = False) -> float:
    inputs = _HALF * shape.layers * rows * tokens * shape.width
    block = _kept_by_block(shape, rows, tokens, is_flash=is_flash)
    return _trained_in_full(shape) + inputs + block + _logits(shape, rows, tokens)


def _flash(shape: ModelShape, rows: int, tokens: int) -> float:
    return _checkpointed(shape, rows, tokens, is_flash=True)


def _mezo(shape: ModelShape, rows: int, tokens: int) -> float:
    """Weights, and the widest moment of one block's forward."""
    mlp = (3 if shape.family.is_gated else 2) * shape.inner + 2 * shape.width
    attention = shape.heads * tokens + 4 * shape.width
    return _weights(shape) + _HALF * rows * tokens * max(mlp, attention) + _logits(shape, rows, tokens) / 2


OTHER_WAYS: dict[str, _Bytes] = {
    "back-propagation, Adam, all weights": _backward,
    "the same with a checkpoint a layer": _checkpointed,
    "the same with flash attention too": _flash,
    "MeZO, all weights": _mezo,
    "back-propagation by the paper's formula": _paper_backward,
    "MeZO by the paper's formula, L'/L = 0.15": _paper_mezo,
}
