"""Fills a table of the paper cell by cell; what was measured is kept at once: a table can be filled in parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prgec.core.machine.files import write_atomic
from prgec.errors import BackendError, CheckpointError, DataError, UsageError
from prgec.lab.bench.options import BenchOptions, Cell
from prgec.lab.bench.presets import Preset
from prgec.lab.bench.result import Row
from prgec.lab.bench.run import Progress, run_bench

# A failure of one cell does not concern the others.
_OF_A_CELL = (UsageError, BackendError)


@dataclass(frozen=True)
class Filled:
    """The known part of a table.

    Attributes:
        rows: By cell and variant.
        reasons: Why a cell that was tried stayed empty.
        machine: Where it was measured; empty before anything was.
    """

    rows: Mapping[tuple[Cell, str], Row]
    reasons: Mapping[Cell, str]
    machine: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the document that is kept."""
        return {"rows": [asdict(row) for row in self.rows.values()], "machine": dict(self.machine)}


def fill(preset: Preset, options: BenchOptions, name: str, progress: Progress = lambda text: None) -> Filled:
    """Measure every cell that is not in the folder yet; one that cannot be measured stays empty, with its reason.

    Args:
        preset: The table, as far as it is wanted.
        options: Model, backend, repeats and the folder.
        name: Name of the table, and of its file.
        progress: Called with one line as each part begins.

    Raises:
        CheckpointError: If there is no such model.
        DataError: If the file in the folder is damaged.
    """
    path = None if options.out is None else options.out / f"{name}.json"
    rows, machine = _read(path)
    reasons: dict[Cell, str] = {}
    for cell, variants in preset.needed():
        missing = tuple(each for each in variants if (cell, each) not in rows)
        if not missing:
            continue
        try:
            # All of a cell, also those that are there: times that are compared are of the same rounds.
            found = run_bench(_of_cell(options, cell, variants), progress)
        except CheckpointError:
            raise
        except _OF_A_CELL as error:
            reasons[cell] = str(error)
            progress(f"{cell}: stays empty: {error}")
            continue
        rows |= {(cell, row.variant): row for each in found.cells for row in each.rows}
        machine = found.machine
        if path is not None:
            document = json.dumps(Filled(rows, {}, machine).to_json(), indent=2, allow_nan=False) + "\n"
            write_atomic(path, document.encode())
    return Filled(rows, reasons, machine)


def _of_cell(options: BenchOptions, cell: Cell, variants: tuple[str, ...]) -> BenchOptions:
    return replace(
        options,
        q=(cell.q,),
        batch_size=(cell.batch_size,),
        seq_len=(cell.seq_len,),
        quantize=(cell.quantize,),
        variants=variants,
    )


def _read(path: Path | None) -> tuple[dict[tuple[Cell, str], Row], dict[str, Any]]:
    if path is None or not path.is_file():
        return {}, {}
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        rows = [Row(**each) for each in raw["rows"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"cannot read what was measured: {error}", where=path, hint="delete it") from error
    return {(_cell_of(row), row.variant): row for row in rows}, dict(raw.get("machine", {}))


def _cell_of(row: Row) -> Cell:
    return Cell(row.quantize, row.q, row.B, row.T)
