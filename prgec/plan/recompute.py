"""What the compiler computes again in the backward pass, on a tape: the choice is its own, made from the same sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prgec.passes.recomputation import Value, values_to_recompute
from prgec.plan.op import Op
from prgec.plan.tape import Tape

# A layer, and its input in 8 bits.
_OF_LAYERS = frozenset({"linear", "convert"})
_NOT_CHEAP = _OF_LAYERS | {"external"}


def recompute(tape: Tape, end: int, stream: Sequence[int] = ()) -> None:
    """Give operations from `end` on copies of what is cheap, each right in front of its first reader.

    Args:
        tape: A forward, and from `end` on its backward.
        end: Number of the first operation of the backward.
        stream: Sums of the residual stream, kept so that layers in front of the last one count as cheap; none of them
            where layers are kept.
    """
    backward = tape.ops[end:]
    read_late = {source for op in backward for source in op.inputs if source < end}
    del tape.ops[end:]
    copies = _Copies(tape, values_to_recompute(_values(tape.ops, stream), read_late))
    moved = list(range(end))
    for op in backward:
        inputs = tuple(copies.of(each) if each in copies.again else moved[each] for each in op.inputs)
        moved.append(tape.add(replace(op, inputs=inputs)))


def _values(ops: Sequence[Op], stream: Sequence[int]) -> list[Value]:
    found: list[Value] = []
    last = max(stream, default=-1)
    for number, op in enumerate(ops):
        is_free = op.kind == "external" or number in stream
        is_product = op.kind in _OF_LAYERS and (number < last or _turns_halves(op))
        found.append(Value(op.inputs, op.num_bytes, op.kind not in _NOT_CHEAP or is_product, is_free))
    return found


def _turns_halves(op: Op) -> bool:
    """Whether it is RoPE's product with a matrix as wide as a head."""
    return not op.is_frozen and op.matrix[0] == op.matrix[1] > 0


class _Copies:
    """Copies of forward operations, each added to the tape when it is first asked for."""

    def __init__(self, tape: Tape, again: set[int]) -> None:
        self.tape = tape
        self.again = again
        self._copy_of: dict[int, int] = {}

    def of(self, number: int) -> int:
        """Return the number of the copy of an operation."""
        if number not in self._copy_of:
            op = self.tape.ops[number]
            inputs = tuple(self.of(each) if each in self.again else each for each in op.inputs)
            # A weight that is read twice is packed once.
            self._copy_of[number] = self.tape.add(replace(op, inputs=inputs, is_result=False, matrix=(0, 0)))
        return self._copy_of[number]
