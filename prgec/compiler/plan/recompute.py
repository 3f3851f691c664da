"""Recomputation in the backward pass, on a tape: the compiler's own choice, made from the same sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prgec.compiler.plan.op import Op
from prgec.compiler.plan.tape import Tape
from prgec.passes.recomputation import Value, checkpoints, values_to_recompute

# A layer, and its input in 8 bits.
_OF_LAYERS = frozenset({"linear", "convert"})
_ARITHMETIC = frozenset({"add", "sub", "mul"})
_NOT_CHEAP = _OF_LAYERS | {"external"}


def recompute(tape: Tape, end: int, stream: Sequence[int], *, layers: bool = False) -> None:
    """Give operations from `end` on copies of cheap operations, each right before its first reader.

    Args:
        tape: A forward, and from `end` on its backward.
        end: Number of the first operation of the backward.
        stream: Sums of the residual stream, in order.
        layers: Whether layers before the last sum count as cheap.
    """
    backward = tape.ops[end:]
    read_late = {source for op in backward for source in op.inputs if source < end}
    del tape.ops[end:]
    kept = set(stream) if layers else {stream[number] for number in checkpoints(len(stream))} & read_late
    values = _values(tape.ops, kept, max(stream) if layers else -1)
    copies = _OpCopies(tape, values_to_recompute(values, read_late))
    moved = list(range(end))
    for op in backward:
        inputs = tuple(copies.of(each) if each in copies.again else moved[each] for each in op.inputs)
        moved.append(tape.add(replace(op, inputs=inputs)))
    _separate(tape, copies.made)


def _values(ops: Sequence[Op], kept: set[int], end_of_layers: int) -> list[Value]:
    found: list[Value] = []
    for number, op in enumerate(ops):
        is_free = op.kind == "external" or number in kept
        is_product = op.kind in _OF_LAYERS and (number < end_of_layers or _turns_halves(op))
        found.append(Value(op.inputs, op.num_bytes, op.kind not in _NOT_CHEAP or is_product, is_free))
    return found


def _turns_halves(op: Op) -> bool:
    """Whether it is RoPE's product with a matrix as wide as a head."""
    return not op.is_frozen and op.matrix[0] == op.matrix[1] > 0


def _separate(tape: Tape, copies: Sequence[int]) -> None:
    """Let each reader have a copy of its own where that is one step from a value that is there until then."""
    readers: dict[int, list[int]] = {}
    for number, op in enumerate(tape.ops):
        for source in set(op.inputs):
            readers.setdefault(source, []).append(number)
    own: dict[int, dict[int, Op]] = {}
    for copy in copies:
        op, sources = tape.ops[copy], {each for each in tape.ops[copy].inputs if tape.ops[each].kind != "external"}
        if op.kind not in _ARITHMETIC or len(sources) != 1:
            continue
        users = readers[copy]
        end = max((each for each in readers[sources.pop()] if each != copy), default=-1)
        for reader in [each for each in users[1:] if each <= end]:
            own.setdefault(reader, {})[copy] = op
            users.remove(reader)
    _put_before(tape, own)


def _put_before(tape: Tape, added: dict[int, dict[int, Op]]) -> None:
    """Add operations before their readers, which read them instead: reader -> old source -> new operation."""
    ops, moved = list(tape.ops), list[int]()
    tape.ops.clear()
    for number, op in enumerate(ops):
        mine = {
            old: tape.add(replace(each, inputs=tuple(moved[source] for source in each.inputs)))
            for old, each in added.get(number, {}).items()
        }
        moved.append(tape.add(replace(op, inputs=tuple(mine.get(each, moved[each]) for each in op.inputs))))


class _OpCopies:
    """Copies of forward operations, each added to the tape on its first use."""

    def __init__(self, tape: Tape, again: set[int]) -> None:
        self.tape = tape
        self.again = again
        self._copy_of: dict[int, int] = {}

    @property
    def made(self) -> list[int]:
        """Numbers of the copies."""
        return list(self._copy_of.values())

    def of(self, number: int) -> int:
        """Return the number of the copy of an operation."""
        if number not in self._copy_of:
            op = self.tape.ops[number]
            inputs = tuple(self.of(each) if each in self.again else each for each in op.inputs)
            # A weight that is read twice is packed once.
            self._copy_of[number] = self.tape.add(replace(op, inputs=inputs, is_result=False, matrix=(0, 0)))
        return self._copy_of[number]
