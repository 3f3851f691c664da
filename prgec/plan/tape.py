"""A step as operations with sizes and nothing else: how much of it is alive at once, and how much it computes.

The runtime gives every intermediate value a place in one arena, and an element-wise operation the place of an input
that nothing else reads (XNNPACK, src/runtime.c). So the arena is what is alive at the worst moment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# May write their result over an input: element-wise operations, softmax and reshapes.
_IN_PLACE = frozenset({"add", "sub", "mul", "unary", "softmax", "view"})
_FREE = frozenset({"view", "external"})
F32 = 4
# Outputs a kernel computes at once; a matrix is packed in as many.
_TILE = 16


@dataclass(frozen=True)
class Op:
    """One operation and its result.

    Attributes:
        kind: What it is; `external` for a value that is there before, or stays behind.
        elements: Of the result.
        inputs: Numbers of the operations it reads.
        rule: Name of its derivative; empty for none.
        element_bytes: Bytes of one element of the result.
        scratch_bytes: What it needs besides while it runs.
        multiplies: Multiplications with a frozen quantised weight.
        multiplies_f32: All other multiplications of matrices.
        matrix: Inputs and outputs of the constant it multiplies with.
        is_frozen: Whether that is a layer of the model, which `--quantize` is about.
        is_result: Whether it is returned, and so lies outside the arena.
    """

    kind: str
    elements: int
    inputs: tuple[int, ...] = ()
    rule: str = ""
    element_bytes: int = F32
    scratch_bytes: int = 0
    multiplies: int = 0
    multiplies_f32: int = 0
    matrix: tuple[int, int] = (0, 0)
    is_frozen: bool = False
    is_result: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the result."""
        return self.elements * self.element_bytes


class Tape:
    """Operations in the order they run.

    Attributes:
        ops: What was added.
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

    def size(self, number: int) -> int:
        """Elements of a result."""
        return self.ops[number].elements

    def keep(self, number: int) -> None:
        """Return the result of an operation."""
        self.ops[number] = replace(self.ops[number], is_result=True)

    def constants(self) -> dict[int, int]:
        """Elements of matrices as the runtime packs them: of frozen layers by their inputs, of all others under 0."""
        found: dict[int, int] = {}
        for op in self.ops:
            inputs, outputs = op.matrix
            key = inputs if op.is_frozen else 0
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
        """What operations write; a view writes nothing."""
        return sum(op.num_bytes for op in self.ops if op.kind not in _FREE)

    def peak_bytes(self) -> int:
        """Bytes of the arena: the most that is alive at once, scratch memory of operations included."""
        readers: list[list[int]] = [[] for _ in self.ops]
        for number, op in enumerate(self.ops):
            for source in op.inputs:
                readers[source].append(number)
        place = self._places(readers)
        last = list(range(len(self.ops)))
        for number, users in enumerate(readers):
            last[place[number]] = max(last[place[number]], number, *users)
        ends: list[int] = [0] * len(self.ops)
        alive = peak = 0
        for number, op in enumerate(self.ops):
            if place[number] == number and self._is_inside(number):
                alive += op.num_bytes
                ends[last[number]] += op.num_bytes
            peak = max(peak, alive + op.scratch_bytes)
            alive -= ends[number]
        return peak

    def _places(self, readers: list[list[int]]) -> list[int]:
        """The operation whose place each result takes: its own, or that of an input it may overwrite."""
        place = list(range(len(self.ops)))
        for number, op in enumerate(self.ops):
            if op.kind not in _IN_PLACE or op.is_result or len(readers[number]) != 1:
                continue
            for source in op.inputs:
                fits = self.ops[source].num_bytes == op.num_bytes
                if fits and self._is_inside(source) and len(readers[source]) == 1:
                    place[number] = place[source]
                    break
        return place

    def _is_inside(self, number: int) -> bool:
        return self.ops[number].kind != "external" and not self.ops[number].is_result
