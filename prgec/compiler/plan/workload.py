"""One way to train a model: what the rows of a plan differ in. Imports nothing heavy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from prgec.compiler.plan.shape import ModelShape
from prgec.core.contract.names import CHEAP
from prgec.errors import UsageError

# Bytes of a frozen weight, for one of 4 bits with a scale of 16 for each of a group.
_WEIGHT_BYTES = {"none": 4.0, "8da8w": 1.0, "w8a16": 1.0, "int8": 1.0}
_GROUPED = ("8da4w", "w4a16", "int4")
_GROUP = 32
_SCALE_BYTES = 2
_LAST = re.compile(r"last:(\d+)")


@dataclass(frozen=True)
class Workload:
    """One way to train, as the flags of `prgec compile` say it.

    Attributes:
        method: prge, exact, shortcut, or side for a forward whose network learns elsewhere.
        quantize: Scheme of the frozen layers.
        layers: `all` or `last:K`.
        q: Queries a step of prge.
        batch_size: B.
        seq_len: T, the compiled maximum.
        num_labels: K label positions.
        rank: r.
        prefix: none, shared, or method for a kept prefix.
        optimizer: Optimiser of exact and shortcut.
        state: State mode of prge.
        group_size: Inputs that share a scale of 4-bit weights.
        accumulates: Whether a step of exact and shortcut may be several calls.
        recompute: Values that the backward of exact computes again: cheap, or layers too.
        context: C, positions that a program is given keys and values of; 0 where it reads no text on.
        rollouts: R, texts that have such a cache each, besides one; 0 for none.
        quantize_cache: Bits of those, 0 for f32.
    """

    method: str = "prge"
    quantize: str = "none"
    layers: str = "all"
    q: int = 4
    batch_size: int = 4
    seq_len: int = 128
    num_labels: int = 4
    rank: int = 16
    prefix: str = "none"
    optimizer: str = "norm"
    state: str = "seeded"
    group_size: int = _GROUP
    accumulates: bool = False
    recompute: str = CHEAP
    context: int = 0
    rollouts: int = 0
    quantize_cache: int = 0

    @property
    def has_gradients(self) -> bool:
        """Whether the program differentiates."""
        return self.method in ("exact", "shortcut")

    @property
    def is_frozen(self) -> bool:
        """Whether the program only runs forwards, and says what its blocks do."""
        return self.method == "side"

    @property
    def rows(self) -> int:
        """N, rows of a call."""
        return 2 * self.q * self.batch_size if self.method == "prge" else self.batch_size

    @property
    def copies(self) -> int:
        """Copies of B that a call multiplies with."""
        return 2 * self.q if self.method == "prge" else 1

    @property
    def prefix_rows(self) -> int:
        """Rows of the blocks before the first trained one; 0 where their results are kept."""
        return {"none": self.rows, "shared": self.batch_size, "method": 0}[self.prefix]

    @property
    def is_quantized(self) -> bool:
        """Whether frozen layers multiply 8-bit activations."""
        return self.quantize.startswith("8da")

    def weight_bytes(self, inputs: int, is_copy: bool = False) -> float:
        """Bytes of one weight of a layer with `inputs` inputs, or of a transposed copy: 8 bits of 8da4w."""
        if is_copy and self.quantize == "8da4w":
            return _WEIGHT_BYTES["8da8w"]
        if self.quantize in _GROUPED:
            is_whole = inputs % self.group_size == 0
            return 0.5 + _SCALE_BYTES / self.group_size if is_whole else _WEIGHT_BYTES["none"]
        return _WEIGHT_BYTES[self.quantize]

    def trained_blocks(self, shape: ModelShape) -> int:
        """How many blocks train.

        Raises:
            UsageError: If the model has fewer.
        """
        if self.layers == "all":
            return shape.layers
        last = _LAST.fullmatch(self.layers)
        if last is None or not 1 <= int(last[1]) <= shape.layers:
            raise UsageError(
                f"--layers {self.layers} cannot be planned for a model of {shape.layers} layers",
                hint="write all, or last:K",
            )
        return int(last[1])
