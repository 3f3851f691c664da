"""The folder of a run of many devices: what the run is, and one line for each of its rounds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from prgec.errors import DataError, UsageError

# The identity of the run, and its rounds.
FLEET_NAME, ROUNDS_NAME = "fleet.json", "rounds.jsonl"


def read_rounds(out: Path) -> list[dict[str, Any]]:
    """Return the lines of the rounds of a server's folder; that of round 0 is from before the first.

    Raises:
        UsageError: If it is not one.
        DataError: If a line is damaged.
    """
    path = out / ROUNDS_NAME
    if not (out / FLEET_NAME).exists():
        raise UsageError("not the folder of a server", where=out, hint="name the --out of prgec federate serve")
    # A server that is killed while it writes leaves a part of a line.
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise DataError("a line is damaged", where=path) from error
    if not all(map(_is_round, lines)):
        raise DataError("a line is not of a round", where=path)
    return lines


def _is_round(line: object) -> bool:
    """Whether a line has the fields of a round, of the types that they have."""
    kinds = {"round": int, "asked": int, "devices": list, "refused": dict, "up_bytes": int, "down_bytes": int}
    numbers = ("seconds", "loss", "accuracy")
    return (
        isinstance(line, dict)
        and all(type(line.get(name)) is kind for name, kind in kinds.items())
        and all(line.get(name) is None or isinstance(line[name], int | float) for name in numbers)
    )


def mend_rounds(out: Path) -> int:
    """Remove the part of a line that a killed server left; return the last round with a line, -1 for none.

    Raises:
        UsageError: If it is not the folder of a server.
        DataError: If a line is damaged.
    """
    lines = read_rounds(out)
    path = out / ROUNDS_NAME
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    return max((line["round"] for line in lines), default=-1)


def planned_rounds(out: Path) -> int:
    """Return how many rounds the run of a server's folder has; 0 where the file does not say.

    Raises:
        DataError: If the file is damaged.
    """
    path = out / FLEET_NAME
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError("the file is damaged", where=path) from error
    rounds = document.get("rounds") if isinstance(document, dict) else None
    return rounds if isinstance(rounds, int) else 0
