"""The P-RGE paper's tables of time and memory, as rows and columns that a benchmark fills on this machine.

Shapes follow the paper; numbers do not: it measured an A100, a Jetson and a phone. Sources: "Enabling Efficient LLM
Fine-Tuning at the Edge via Inference Engines" (tables 4 to 6, 12 and 13, figure 6). Its batch size is B at q = 1, and q
times the effective batch size elsewhere. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from prgec.errors import UsageError
from prgec.lab.bench.options import Cell
from prgec.lab.bench.variants import find_variant

SECONDS, GIGABYTES, SPEEDUP = "s/step", "GB", "x"


@dataclass(frozen=True)
class Line:
    """One row of a table.

    Attributes:
        label: As the paper has it.
        variant: Variant to measure.
        unit: `SECONDS`, `GIGABYTES` of anonymous memory, or `SPEEDUP`.
        against: The slower side of a speed-up.
        quantize: Scheme of this row alone; empty for that of the table.
    """

    label: str
    variant: str
    unit: str = SECONDS
    against: str = ""
    quantize: str = ""

    @property
    def variants(self) -> tuple[str, ...]:
        """The measurements that it needs."""
        return (self.against, self.variant) if self.against else (self.variant,)


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One table.

    Attributes:
        title: The paper's name of it, and its counterpart here.
        lines: Rows.
        seq_len: T of the columns.
        pairs: (q, B) of the columns under each T.
        quantize: Scheme of the frozen layers.
        has_chart: Whether it is drawn, too.
    """

    title: str
    lines: tuple[Line, ...]
    seq_len: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    quantize: str = "none"
    has_chart: bool = False

    def columns(self) -> list[tuple[int, int, int]]:
        """(T, q, B) of every column, in order."""
        return [(seq_len, q, batch_size) for seq_len, (q, batch_size) in product(self.seq_len, self.pairs)]

    def cell(self, line: Line, column: tuple[int, int, int]) -> Cell:
        """The unit of a row under a column."""
        seq_len, q, batch_size = column
        # PyTorch computes in f32 whatever the table is about.
        scheme = "none" if find_variant(line.variant).is_eager else line.quantize or self.quantize
        return Cell(scheme, q, batch_size, seq_len)

    def needed(self) -> Iterator[tuple[Cell, tuple[str, ...]]]:
        """Yield every cell with the variants that rows want of it, column by column."""
        for column in self.columns():
            cells: dict[Cell, dict[str, None]] = {}
            for line in self.lines:
                cells.setdefault(self.cell(line, column), {}).update(dict.fromkeys(line.variants))
            yield from ((cell, tuple(variants)) for cell, variants in cells.items())


_FIRST_QUERY = tuple((1, batch_size) for batch_size in (1, 8, 16))
PRESETS: dict[str, Preset] = {
    "prge-table-4": Preset(
        title="Table 4: runtime (s/step) and speed-up of inner-loop parallelisation; 4-bit weights (8da4w) for NF4",
        lines=(
            Line("MeZO (LoRA-FA)", "sequential"),
            Line("P-RGE", "prgec"),
            Line("Speedup ratio", "prgec", SPEEDUP, against="sequential"),
        ),
        seq_len=(64, 128),
        pairs=tuple((1, batch_size) for batch_size in (1, 2, 4, 8)),
        quantize="8da4w",
    ),
    "prge-table-5": Preset(
        title="Table 5: runtime and memory of dual forwarding in an inference engine; this machine's for an NPU",
        lines=(
            Line("Runtime, the paper's graph", "paper"),
            Line("Memory, the paper's graph", "paper", GIGABYTES),
            Line("Runtime", "prgec"),
            Line("Memory", "prgec", GIGABYTES),
        ),
        seq_len=(64, 128),
        pairs=tuple((1, batch_size) for batch_size in (2, 4, 8, 16)),
    ),
    "prge-table-6": Preset(
        title="Table 6: runtime (s/step) of first order and MeZO over all weights; PyTorch, f32",
        lines=(Line("FO-SGD", "fo"), Line("MeZO-SGD (q = 1)", "mezo-full")),
        seq_len=(64, 128, 256),
        pairs=tuple((1, batch_size) for batch_size in (1, 4, 8)),
    ),
    "prge-table-12": Preset(
        title="Table 12: outer-loop parallelisation under the same batch size qB = 16",
        lines=(Line("Runtime", "outer"), Line("Memory", "outer", GIGABYTES)),
        seq_len=(64, 128, 256),
        pairs=((1, 16), (4, 4), (16, 1)),
        quantize="8da4w",
        has_chart=True,
    ),
    "prge-table-13": Preset(
        title="Table 13: runtime (s/step) of inner-loop parallelisation",
        lines=(Line("MeZO (q = 1, LoRA-FA)", "sequential"), Line("P-RGE (q = 1, inner)", "inner")),
        seq_len=(64, 128, 256),
        pairs=_FIRST_QUERY,
        quantize="8da4w",
        has_chart=True,
    ),
    "prge-fig-6": Preset(
        title="Figure 6: speed-up of inner-loop parallelisation by weights; "
        "8da8w for INT8, 8da4w for NF4, f32 for FP16",
        lines=tuple(
            Line(label, "inner", SPEEDUP, against="sequential", quantize=scheme)
            for label, scheme in (("f32", "none"), ("INT8", "8da8w"), ("NF4", "8da4w"))
        ),
        seq_len=(64, 128, 256),
        pairs=_FIRST_QUERY,
        has_chart=True,
    ),
}


def narrowed(
    preset: Preset, *, q: tuple[int, ...], batch_size: tuple[int, ...], seq_len: tuple[int, ...], quantize: str
) -> Preset:
    """Return a table with other columns or weights if requested; empty stands for the paper's.

    Raises:
        UsageError: If both q and B are free, and no pair of the table has them.
    """
    pairs = preset.pairs
    if q or batch_size:
        known_q, known_b = ({pair[place] for pair in pairs} for place in (0, 1))
        wanted = [pair for pair in pairs if (not q or pair[0] in q) and (not batch_size or pair[1] in batch_size)]
        pairs = tuple(wanted) or tuple(product(q or sorted(known_q), batch_size or sorted(known_b)))
    lines = tuple(replace(line, quantize="") for line in preset.lines) if quantize else preset.lines
    if quantize and len({replace(line, label="") for line in lines}) < len(lines):
        raise UsageError("the rows of this table differ by their weights; leave out --quantize")
    return replace(
        preset, seq_len=seq_len or preset.seq_len, pairs=pairs, lines=lines, quantize=quantize or preset.quantize
    )
