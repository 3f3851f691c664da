"""The rows by which an export is measured: a file that the user names, or those of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prgec.core.data.tasks import AUTO_TASK


@dataclass(frozen=True)
class RowsFile:
    """Rows whose loss is measured.

    Attributes:
        path: The data file.
        task: Its task, or `auto`.
        columns: Names of columns as `--map` takes them.
        is_named: Whether the user named it; else it is left out where it cannot be read.
    """

    path: Path
    task: str = AUTO_TASK
    columns: tuple[str, ...] = ()
    is_named: bool = False
