"""Data of callers as files: a path is one already, and rows in memory become one for as long as they are needed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from prgec.errors import DataError

# A data file, or rows such as a list of dicts or a `datasets.Dataset`.
Data: TypeAlias = str | Path | Iterable[Mapping[str, Any]]


@contextmanager
def data_file(data: Data, name: str = "rows") -> Iterator[Path]:
    """Yield the file of some data; rows in memory are written to a temporary one.

    Args:
        data: A path, or rows.
        name: Name of a temporary file, for messages.

    Raises:
        DataError: If a row in memory is not a mapping, or cannot be written as JSON.
    """
    if isinstance(data, str | Path):
        yield Path(data)
        return
    with TemporaryDirectory(prefix="prgec-") as folder:
        path = Path(folder) / f"{name}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for number, row in enumerate(data, start=1):
                file.write(_line(row, number) + "\n")
        yield path


def _line(row: Mapping[str, Any], number: int) -> str:
    if not isinstance(row, Mapping):
        raise DataError(f"row {number} is a {type(row).__name__}; expected a dict")
    try:
        return json.dumps(dict(row), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"row {number} cannot be written as JSON: {error}") from error
