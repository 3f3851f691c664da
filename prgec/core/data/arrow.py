"""Tables of Apache's formats, read by pyarrow: Parquet, Arrow files and Arrow streams."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prgec.core.data.jsonl import Record
from prgec.core.data.opening import ARROW_STREAM, PARQUET, import_pyarrow, open_data
from prgec.errors import DataError

# Fields that pandas writes beside the columns.
_INDEX_PREFIX = "__index_level_"
_LABEL, _LABEL_TEXT = "label", "label_text"


def read_arrow(path: Path, magic: bytes) -> tuple[Iterator[Record], str]:
    """Read a table, a batch of rows at a time.

    Args:
        path: The file.
        magic: Its first bytes.

    Returns:
        The rows, and what the file is, for people.

    Raises:
        DataError: If pyarrow is not installed, or cannot read the file: then, or while rows are used.
    """
    rows = _rows(import_pyarrow(path, "Parquet or Arrow"), path, magic)
    records = (Record(row, path, number, "row") for number, row in enumerate(rows, start=1))
    return records, "Parquet" if magic == PARQUET else "Arrow"


def _rows(pyarrow: Any, path: Path, magic: bytes) -> Iterator[dict[str, Any]]:
    with open_data(path) as (file, _):
        try:
            for batch in _batches(pyarrow, file, magic):
                yield from _rows_of(batch)
        except (pyarrow.ArrowException, ValueError, OverflowError, MemoryError) as error:
            reason = " ".join(str(error).split()) or "it asks for too much memory"
            raise DataError(f"pyarrow cannot read it: {reason}", where=path) from error


def _batches(pyarrow: Any, file: Any, magic: bytes) -> Iterator[Any]:
    if magic == PARQUET:
        parquet = importlib.import_module("pyarrow.parquet")
        yield from parquet.ParquetFile(file).iter_batches()
    elif magic == ARROW_STREAM:
        yield from pyarrow.ipc.open_stream(file)
    else:
        reader = pyarrow.ipc.open_file(file)
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))


def _rows_of(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch, a number of a label with the name that the datasets library keeps for it."""
    # A damaged file would end the process.
    batch.validate(full=True)
    names = _label_names(batch.schema)
    for row in batch.to_pylist():
        kept = {name: value for name, value in row.items() if not name.startswith(_INDEX_PREFIX)}
        label = kept.get(_LABEL)
        if _LABEL_TEXT not in kept and isinstance(label, int) and 0 <= label < len(names):
            kept[_LABEL_TEXT] = names[label]
        yield kept


def _label_names(schema: Any) -> list[str]:
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[_LABEL]["names"]
    except (KeyError, TypeError, ValueError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []
