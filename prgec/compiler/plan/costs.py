"""The time of a step: how often it does each kind of work, and the seconds of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass

from prgec.compiler.plan.shape import ModelShape
from prgec.compiler.plan.step import prefix_sizes, step_sizes
from prgec.compiler.plan.workload import Workload


@dataclass(frozen=True)
class Costs:
    """Seconds, of one of each; the same fields say how many of each a step has.

    Attributes:
        product: Multiplication with a quantised weight.
        product_f32: Any other multiplication of matrices.
        moved_byte: Byte that an operation writes.
        weight_byte: Byte of weights and constants, which a call reads once.
        call: Call of the program, whatever its size.
    """

    product: float = 0.0
    product_f32: float = 0.0
    moved_byte: float = 0.0
    weight_byte: float = 0.0
    call: float = 0.0

    def __post_init__(self) -> None:
        if not all(type(each) in (int, float) and 0 <= each < float("inf") for each in astuple(self)):
            raise ValueError(f"{asdict(self)} are not costs")

    def of(self, step: Costs) -> float:
        """Seconds of a step."""
        terms = (each * many for each, many in zip(astuple(self), astuple(step), strict=True))
        return float(sum(terms))


def counts_of(shape: ModelShape, work: Workload) -> Costs:
    """How much of everything one step has; what is kept of a prefix is not computed again."""
    sizes = step_sizes(shape, work)
    if work.prefix != "method":
        sizes = sizes.plus(prefix_sizes(shape, work))
    return Costs(sizes.multiplies, sizes.multiplies_f32, sizes.moved_bytes, sizes.constant_bytes, 1.0)


def costs_of(raw: Mapping[str, float]) -> Costs:
    """Read costs out of a file.

    Raises:
        TypeError: If a name is missing or unknown.
        ValueError: If a value is not a cost.
    """
    return Costs(**{**dict.fromkeys(Costs.__dataclass_fields__, None), **raw})  # type: ignore[arg-type]
