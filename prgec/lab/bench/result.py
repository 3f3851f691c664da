"""Results of a benchmark as rows, and as the JSON document other tools read. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from prgec.lab.bench.options import Cell
from prgec.lab.bench.timing import ratio_of

# The variant that others are compared with.
REFERENCES = ("inference", "prgec")


@dataclass(frozen=True)
class Row:
    """One variant in one cell; the fields are the keys of the JSON row.

    Attributes:
        variant: Row of the variant table.
        backend: Backend that computed it; `torch` without a compiled program.
        quantize: Scheme of the frozen layers it really had.
        q: Queries a step.
        B: Examples a step.
        T: Tokens a row.
        layers: Which decoder layers train.
        step_s: Median seconds of a step.
        peak_anon_bytes: Largest anonymous memory of a process that runs it alone.
        peak_rss_bytes: Largest resident set of that process.
        planned_anon_bytes: `prgec plan`'s value of `peak_anon_bytes`; 0 for variants it does not plan.
        file_bytes: Size of the .pte, or of the checkpoint's weights.
        compile_s: Seconds from checkpoint to .pte.
        delegates: Delegates of the forward.
    """

    variant: str
    backend: str
    quantize: str
    q: int
    B: int
    T: int
    layers: str
    step_s: float
    peak_anon_bytes: int
    peak_rss_bytes: int
    planned_anon_bytes: int
    file_bytes: int
    compile_s: float
    delegates: int


@dataclass(frozen=True, kw_only=True)
class RatioRow:
    """Time of a variant over that of a reference in the same cell and the same rounds.

    Attributes:
        quantize: Scheme of the cell.
        q: Queries a step.
        B: Examples a step.
        T: Tokens a row.
        variant: Variant to compare.
        reference: With what.
        ratio: Median of the rounds' ratios.
        low: First quartile.
        high: Third quartile.
        rounds: Rounds both took part in.
    """

    quantize: str
    q: int
    B: int
    T: int
    variant: str
    reference: str
    ratio: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True)
class CellResult:
    """All variants of one cell, in the order they took turns."""

    cell: Cell
    rows: tuple[Row, ...]
    ratios: tuple[RatioRow, ...]

    def ratio(self, variant: str, reference: str) -> RatioRow | None:
        """The comparison of two variants, or None where one of them did not run."""
        return next((r for r in self.ratios if (r.variant, r.reference) == (variant, reference)), None)


@dataclass(frozen=True)
class BenchResult:
    """A whole benchmark: cells in the order of the matrix, and where it ran."""

    cells: tuple[CellResult, ...]
    machine: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Exactly the keys rows, machine and ratios."""
        return {
            "rows": [asdict(row) for each in self.cells for row in each.rows],
            "machine": self.machine,
            "ratios": [asdict(ratio) for each in self.cells for ratio in each.ratios],
        }


def compare(cell: Cell, seconds: Mapping[str, Mapping[int, float]]) -> tuple[RatioRow, ...]:
    """Compare every variant with each reference that ran."""
    rows = []
    for reference in REFERENCES:
        for variant in seconds if reference in seconds else ():
            if variant == reference:
                continue
            found = ratio_of(seconds[variant], seconds[reference])
            rows.append(
                RatioRow(
                    quantize=cell.quantize,
                    q=cell.q,
                    B=cell.batch_size,
                    T=cell.seq_len,
                    variant=variant,
                    reference=reference,
                    ratio=found.median,
                    low=found.low,
                    high=found.high,
                    rounds=found.rounds,
                )
            )
    return tuple(rows)
