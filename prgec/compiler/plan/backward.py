"""Gradients of a forward on a tape: what each derivative of the compiler keeps alive, adds and multiplies.

The rules stand for those of `prgec.passes.derivatives`, with sizes in place of values; tests hold the two together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from prgec.compiler.plan.op import Op
from prgec.compiler.plan.tape import Tape

Shares: TypeAlias = Iterator[tuple[int, int]]

_PRODUCTS = frozenset({"linear", "bmm"})


@dataclass(kw_only=True)
class Backward:
    """A walk from a gradient back to what is trained.

    Attributes:
        tape: Holds the forward; gets the backward.
        wrt: Operations whose gradients are requested.
        seq_len: T.
        head_width: d.
        found: Gradients so far, by operation.
    """

    tape: Tape
    wrt: Sequence[int]
    seq_len: int
    head_width: int
    found: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._end = len(self.tape.ops)
        self._needed = set(self.wrt)
        for number in range(self._end):
            if not self._needed.isdisjoint(self.tape.ops[number].inputs):
                self._needed.add(number)

    def walk(self, seeds: dict[int, int]) -> dict[int, int]:
        """Add all operations of the backward and return the requested gradients.

        Args:
            seeds: Operation -> its gradient, to begin with.
        """
        self.found.update(seeds)
        leaves = set(self.wrt)
        for number in self._whole_gradients():
            dy = self.found.get(number)
            if dy is None or number in leaves:
                continue
            for source, share in _RULES[self.tape.ops[number].rule](self, number, dy):
                self._add(source, share)
        return {number: self.found[number] for number in self.wrt if number in self.found}

    def _whole_gradients(self) -> Iterator[int]:
        """Operations on the way, each after its readers: last first, but products after all others."""
        ops, needed = self.tape.ops[: self._end], self._needed
        waiting = dict.fromkeys(needed, 0)
        for number in needed:
            for source in needed.intersection(ops[number].inputs):
                waiting[source] += 1
        ready = [(ops[number].kind in _PRODUCTS, -number) for number, readers in waiting.items() if not readers]
        heapq.heapify(ready)
        while ready:
            number = -heapq.heappop(ready)[1]
            yield number
            for source in needed.intersection(ops[number].inputs):
                waiting[source] -= 1
                if not waiting[source]:
                    heapq.heappush(ready, (ops[source].kind in _PRODUCTS, -source))

    def needs(self, number: int) -> bool:
        """Whether a gradient of an operation is of any use."""
        return number in self._needed

    def inputs(self, number: int) -> tuple[int, ...]:
        """Operations that an operation reads."""
        return self.tape.ops[number].inputs

    def like_op(self, kind: str, *inputs: int) -> int:
        """Add an operation whose result is as large as its first input."""
        return self.tape.put(kind, self.tape.size(inputs[0]), *inputs)

    def reduced(self, dy: int, source: int) -> int:
        """A gradient summed over what broadcasting repeated of `source`."""
        size, wanted = self.tape.size(dy), self.tape.size(source)
        return dy if size <= wanted else self.tape.add(Op("linear", wanted, (dy,), multiplies_f32=size))

    def last_view(self, dy: int) -> int:
        """The end of the views of a gradient, or the gradient."""
        for number in range(dy + 1, len(self.tape.ops)):
            op = self.tape.ops[number]
            if op.kind == "view" and op.inputs == (dy,):
                dy = number
        return dy

    def _add(self, number: int, share: int) -> None:
        before = self.found.get(number)
        self.found[number] = share if before is None else self.like_op("add", before, share)


def _same(walk: Backward, number: int, dy: int) -> Shares:
    """A view, or a sum with a constant."""
    (source,) = walk.inputs(number)
    if walk.needs(source):
        yield source, walk.like_op("view", dy) if walk.tape.ops[number].kind == "view" else dy


def _mul_constant(walk: Backward, number: int, dy: int) -> Shares:
    yield walk.inputs(number)[0], walk.like_op("mul", dy)


def _add(walk: Backward, number: int, dy: int) -> Shares:
    for source in filter(walk.needs, walk.inputs(number)):
        yield source, walk.reduced(dy, source)


def _sub(walk: Backward, number: int, dy: int) -> Shares:
    first, second = walk.inputs(number)
    if walk.needs(first):
        yield first, dy
    if walk.needs(second):
        yield second, walk.reduced(walk.like_op("unary", dy), second)


def _square(walk: Backward, number: int, dy: int) -> Shares:
    (source,) = walk.inputs(number)
    yield source, walk.like_op("mul", walk.like_op("mul", source), dy)


def _mul(walk: Backward, number: int, dy: int) -> Shares:
    first, second = walk.inputs(number)
    for source, other in ((first, second), (second, first)):
        if walk.needs(source):
            yield source, walk.reduced(walk.like_op("mul", dy, other), source)


def _linear(walk: Backward, number: int, dy: int) -> Shares:
    """A product with the transposed weight, quantised if the layer is."""
    tape, op, (source,) = walk.tape, walk.tape.ops[number], walk.inputs(number)
    if tape.ops[source].kind == "convert":
        (source,) = walk.inputs(source)
    if not walk.needs(source):
        return
    seen = walk.last_view(dy)
    read = tape.add(Op("convert", tape.size(dy), (seen,), element_bytes=1)) if op.multiplies else seen
    size, matrix = tape.size(source), op.matrix[::-1]
    dx = tape.add(replace(op, elements=size, inputs=(read,), matrix=matrix, is_copy=True, is_result=False))
    yield source, dx if seen == dy else walk.like_op("view", dx)


def _product(walk: Backward, number: int, dy: int) -> Shares:
    """A product with a small constant; what was one row is spread by its values."""
    (source,) = walk.inputs(number)
    op = walk.tape.ops[number]
    if walk.needs(source) and op.matrix[1] == 1:
        yield source, walk.tape.put("mul", walk.tape.size(source), dy)
    elif walk.needs(source):
        back = replace(op, elements=walk.tape.size(source), inputs=(dy,), matrix=op.matrix[::-1])
        yield source, walk.tape.add(back)


def _bmm(walk: Backward, number: int, dy: int) -> Shares:
    tape, op, (a, b) = walk.tape, walk.tape.ops[number], walk.inputs(number)
    if walk.needs(a):
        other = _swapped(walk, b)
        yield a, walk.tape.bmm(tape.size(a), dy, other, op.multiplies_f32)
    if walk.needs(b):
        yield b, tape.bmm(tape.size(b), _swapped(walk, a), dy, op.multiplies_f32)


def _swapped(walk: Backward, number: int) -> int:
    """The transpose of a value: what it is a transpose of, or a copy."""
    is_swap = walk.tape.ops[number].rule == "swap"
    return walk.inputs(number)[0] if is_swap else walk.like_op("transpose", number)


def _swap(walk: Backward, number: int, dy: int) -> Shares:
    (source,) = walk.inputs(number)
    if walk.needs(source):
        yield source, walk.like_op("copy", dy)


def _rsqrt(walk: Backward, number: int, dy: int) -> Shares:
    share = walk.like_op("mul", dy)
    for _ in range(3):
        share = walk.like_op("mul", share, number)
    yield walk.inputs(number)[0], share


def _tanh(walk: Backward, number: int, dy: int) -> Shares:
    square = walk.like_op("mul", number, number)
    yield walk.inputs(number)[0], walk.like_op("sub", dy, walk.like_op("mul", dy, square))


def _silu(walk: Backward, number: int, dy: int) -> Shares:
    x = walk.inputs(number)[0]
    gate = walk.like_op("unary", x)
    rest = walk.like_op("sub", number, walk.like_op("mul", number, gate))
    yield x, walk.like_op("mul", dy, walk.like_op("add", gate, rest))


def _relu(walk: Backward, number: int, dy: int) -> Shares:
    step = walk.like_op("unary", walk.like_op("mul", number))
    yield walk.inputs(number)[0], walk.like_op("mul", dy, step)


def _gelu(walk: Backward, number: int, dy: int) -> Shares:
    (x,) = walk.inputs(number)
    square = walk.like_op("mul", x, x)
    odd = walk.like_op("mul", walk.like_op("sub", number, walk.like_op("mul", x)), x)
    ratio = walk.like_op("mul", odd, walk.like_op("add", square))
    density = walk.like_op("mul", walk.like_op("unary", walk.like_op("mul", square)))
    slope = walk.like_op("add", walk.like_op("add", ratio), walk.like_op("mul", x, density))
    yield x, walk.like_op("mul", dy, slope)


def _softmax(walk: Backward, number: int, dy: int) -> Shares:
    """Its row sums are those of the attention's result times its gradient."""
    tape, (source,) = walk.tape, walk.inputs(number)
    reader = next(each for each in range(number, len(tape.ops)) if number in tape.ops[each].inputs)
    spread = walk.like_op("mul", walk.found[reader], reader)
    rows = tape.add(Op("linear", tape.size(number) // walk.seq_len, (spread,), multiplies_f32=tape.size(spread)))
    yield source, walk.like_op("mul", walk.like_op("sub", dy, rows), number)


def _cat(walk: Backward, number: int, dy: int) -> Shares:
    """Parts of a head, taken by products with matrices that choose."""
    tape, width = walk.tape, walk.head_width
    rows = tape.size(number) // width
    for source in filter(walk.needs, walk.inputs(number)):
        part = tape.size(source) // rows
        products = rows * width * part
        yield source, tape.add(Op("linear", rows * part, (dy,), multiplies_f32=products, matrix=(width, part)))


Rule: TypeAlias = Callable[[Backward, int, int], Shares]
_RULES: dict[str, Rule] = {
    "same": _same,
    "mul_constant": _mul_constant,
    "add": _add,
    "sub": _sub,
    "square": _square,
    "mul": _mul,
    "linear": _linear,
    "product": _product,
    "bmm": _bmm,
    "swap": _swap,
    "rsqrt": _rsqrt,
    "tanh": _tanh,
    "silu": _silu,
    "relu": _relu,
    "gelu": _gelu,
    "softmax": _softmax,
    "cat": _cat,
}
