"""One operation of a step, with sizes and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

F32 = 4


@dataclass(frozen=True)
class Op:
    """One operation and its result.

    Attributes:
        kind: Kind of operation; `external` for a value that exists before it, or outlives it.
        elements: Elements of the result.
        inputs: Numbers of the operations it reads.
        rule: Name of its derivative; empty for none.
        element_bytes: Bytes of one element of the result.
        scratch_bytes: Further memory while it runs.
        multiplies: Multiplications with a frozen quantised weight.
        multiplies_f32: All other multiplications of matrices.
        matrix: Inputs and outputs of the constant it multiplies with.
        is_frozen: Whether that is a layer of the model, which `--quantize` is about.
        is_copy: Whether it is the transposed copy of one.
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
    is_copy: bool = False
    is_result: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the result."""
        return self.elements * self.element_bytes
