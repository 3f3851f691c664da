"""The plan for the programs that a benchmark measures, and its error."""

from __future__ import annotations

from collections.abc import Iterator

from prgec.compiler.frontend.checkpoint import Checkpoint
from prgec.compiler.plan.memory import memory_of
from prgec.compiler.plan.options import CALIBRATED
from prgec.compiler.plan.source import shape_of_checkpoint
from prgec.compiler.plan.speed import VARIANTS as PLANNED
from prgec.compiler.plan.speed import work_of_row
from prgec.errors import CheckpointError, UsageError
from prgec.lab.bench.options import Cell
from prgec.lab.bench.result import BenchResult
from prgec.lab.bench.variants import Variant


def planned_anon_bytes(
    variant: Variant, cell: Cell, layers: tuple[str, ...], checkpoint: Checkpoint, backend: str
) -> int:
    """Return the peak a plan has for a variant in a process of its own; 0 for what is not planned."""
    if variant.name not in PLANNED or backend != CALIBRATED:
        return 0
    row = {
        "variant": variant.name,
        "quantize": cell.quantize,
        "layers": ",".join(layers),
        "q": cell.q,
        "B": cell.batch_size,
        "T": cell.seq_len,
    }
    try:
        return memory_of(shape_of_checkpoint(checkpoint.path, checkpoint.name), work_of_row(row), driver="bench").total
    except (CheckpointError, UsageError):
        return 0


def against_plan(result: BenchResult) -> Iterator[str]:
    """Yield a Markdown table of what was planned beside what was measured."""
    yield "| cell | variant | measured MB | planned MB | off |"
    yield "|---|---|---:|---:|---:|"
    for each in result.cells:
        for row in each.rows:
            planned = row.planned_anon_bytes
            off = f"{planned / row.peak_anon_bytes - 1.0:+.1%}" if planned and row.peak_anon_bytes else "not planned"
            sizes = f"{row.peak_anon_bytes / 1e6:.1f} | {f'{planned / 1e6:.1f}' if planned else '-'}"
            yield f"| {each.cell} | {row.variant} | {sizes} | {off} |"
