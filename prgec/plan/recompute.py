"""What the compiler computes again in the backward pass, on a tape: the choice is its own, made from the same sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prgec.passes.recomputation import Value, values_to_recompute
from prgec.plan.op import Op
from prgec.plan.tape import Tape

_NOT_CHEAP = frozenset({"linear", "convert", "external"})


def recompute(tape: Tape, end: int) -> None:
    """Give operations from `end` on copies of what is cheap, each right in front of its first reader."""
    read_late = {source for op in tape.ops[end:] for source in op.inputs if source < end}
    again = values_to_recompute(_values(tape.ops[:end]), read_late)
    tape.ops = _Copier(tape.ops[:end], again).with_copies(tape.ops[end:])


def _values(ops: Sequence[Op]) -> list[Value]:
    found: list[Value] = []
    for op in ops:
        # A weight, a table or an input, and such a one in another shape.
        is_free = op.kind == "external" or (op.kind == "view" and ops[op.inputs[0]].kind == "external")
        found.append(Value(op.inputs, op.num_bytes, op.kind not in _NOT_CHEAP, is_free))
    return found


class _Copier:
    """Writes a backward behind a forward, with copies of forward operations in between."""

    def __init__(self, forward: Sequence[Op], again: set[int]) -> None:
        self.ops = list(forward)
        self.again = again
        self._copy_of: dict[int, int] = {}

    def with_copies(self, backward: Sequence[Op]) -> list[Op]:
        """Return all operations; those of the backward are numbered anew."""
        end = len(self.ops)
        moved = list(range(end))
        for op in backward:
            inputs = tuple(self._copy(each) if each in self.again else moved[each] for each in op.inputs)
            moved.append(self._append(replace(op, inputs=inputs)))
        return self.ops

    def _copy(self, number: int) -> int:
        if number not in self._copy_of:
            op = self.ops[number]
            inputs = tuple(self._copy(each) if each in self.again else each for each in op.inputs)
            self._copy_of[number] = self._append(replace(op, inputs=inputs, is_result=False))
        return self._copy_of[number]

    def _append(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1
