"""A reader: data files whose names end in `.toml`, with a table `[[rows]]` for each row."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_toml(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file.

    Args:
        path: The file.
    """
    with path.open("rb") as file:
        yield from tomllib.load(file)["rows"]
