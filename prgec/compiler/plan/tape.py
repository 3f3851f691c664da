"""A step as operations with sizes and nothing else: what it keeps, and how much it computes."""

from __future__ import annotations

from dataclasses import replace

from prgec.compiler.plan.op import F32, Op

_FREE = frozenset({"view", "external"})
# Outputs a kernel computes at once; a matrix is packed in as many.
_TILE = 16


class Tape:
    """Operations in the order they run.

    Attributes:
        ops: The operations added so far.
    """

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def add(self, op: Op) -> int:
        """Add an operation and return its number."""
        self.ops.append(op)
        return len(self.ops) - 1

    def put(self, kind: str, elements: int, *inputs: int, rule: str = "") -> int:
        """Add an operation without scratch memory or multiplications."""
        return self.add(Op(kind, elements, inputs, rule))

    def bmm(self, elements: int, a: int, b: int, products: int) -> int:
        """Add a batch of products, which packs its second factor after a row of zeros while it runs."""
        inner = products // elements
        packed = self.size(b) * F32 * (inner + 1) // inner
        return self.add(Op("bmm", elements, (a, b), "bmm", scratch_bytes=packed, multiplies_f32=products))

    def size(self, number: int) -> int:
        """Elements of a result."""
        return self.ops[number].elements

    def keep(self, number: int) -> None:
        """Return the result of an operation."""
        self.ops[number] = replace(self.ops[number], is_result=True)

    def constants(self) -> dict[tuple[int, bool], int]:
        """Elements of matrices as the runtime packs them.

        Frozen layers are keyed by their inputs and whether they are transposed copies; all others by 0.
        """
        found: dict[tuple[int, bool], int] = {}
        for op in self.ops:
            inputs, outputs = op.matrix
            key = (inputs, op.is_copy) if op.is_frozen else (0, False)
            found[key] = found.get(key, 0) + inputs * -(-outputs // _TILE) * _TILE
        return found

    @property
    def multiplies(self) -> int:
        """Multiplications with frozen quantised weights."""
        return sum(op.multiplies for op in self.ops)

    @property
    def multiplies_f32(self) -> int:
        """All other multiplications of matrices."""
        return sum(op.multiplies_f32 for op in self.ops)

    @property
    def moved_bytes(self) -> int:
        """Bytes that operations write; a view writes nothing."""
        return sum(op.num_bytes for op in self.ops if op.kind not in _FREE)
