"""The file that keeps what calibrating measured, by machine, scheme and method."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prgec.compiler.plan.costs import Costs, costs_of
from prgec.compiler.plan.speed import Speed
from prgec.core.machine.describe import machine_name
from prgec.core.machine.files import cache_folder, write_atomic
from prgec.errors import UsageError

_NAME = "speeds.json"
# Measured is one of several: int8 products take as long whatever their weights are stored in, and both gradients are
# made of the same operations, as are forwards with branches and without.
_SCHEMES = {"none": "none", "8da4w": "8da4w", "8da8w": "8da4w"}
_METHODS = {"prge": "prge", "exact": "exact", "shortcut": "exact", "side": "prge"}

Measured = Mapping[tuple[str, str], Costs]


def calibration_path() -> Path:
    """Return where the file of this user is, whether it is there or not.

    Raises:
        UsageError: If the environment names no place.
    """
    folder = cache_folder()
    if folder is None:
        raise UsageError("no cache folder: PRGEC_CACHE, XDG_CACHE_HOME and HOME are empty", hint="set one of them")
    return folder / _NAME


def keep_calibration(measured: Measured, model: str, date: str) -> Path:
    """Keep what was measured on this machine; what it measured before with other schemes or methods stays.

    Raises:
        UsageError: If the file cannot be written, or is damaged.
    """
    path = calibration_path()
    document = _read(path)
    own = document.setdefault(machine_name(), {})
    for (scheme, method), costs in measured.items():
        own.setdefault(scheme, {})[method] = {"model": model, "date": date, "seconds": asdict(costs)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise UsageError(f"cannot keep the calibration: {error.strerror}", where=path) from error
    return path


def calibrated_speed() -> Speed | None:
    """Return what was measured on this machine; None where nothing was.

    Raises:
        UsageError: If the file is damaged.
    """
    if cache_folder() is None:
        return None
    path = calibration_path()
    own = _read(path).get(machine_name())
    if not own:
        return None
    try:
        found = {(scheme, method): each for scheme, rows in own.items() for method, each in rows.items()}
        costs = {
            (scheme, method): costs_of(found[_SCHEMES[scheme], _METHODS[method]]["seconds"])
            for scheme in _SCHEMES
            for method in _METHODS
            if (_SCHEMES[scheme], _METHODS[method]) in found
        }
        newest = max(found.values(), key=lambda each: str(each["date"]))
        origin = f"this machine, calibrated {newest['date']} with blocks of {newest['model']} ({path})"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error
    return Speed(costs, origin)


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    if not isinstance(raw, dict):
        raise _damaged(path, "it is not a JSON object")
    return raw


def _damaged(path: Path, reason: object) -> UsageError:
    hint = "delete it, and calibrate again with prgec plan --calibrate"
    return UsageError(f"cannot use the calibration: {reason}", where=path, hint=hint)
