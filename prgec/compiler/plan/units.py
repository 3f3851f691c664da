"""Budgets as people write them: 4G, 512M, 2h, 90m."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from prgec.errors import UsageError

_BYTES = {"": 1, "B": 1, "K": 1e3, "KB": 1e3, "M": 1e6, "MB": 1e6, "G": 1e9, "GB": 1e9, "T": 1e12, "TB": 1e12}
_BYTES |= {"KIB": 2.0**10, "MIB": 2.0**20, "GIB": 2.0**30, "TIB": 2.0**40}
_SECONDS: dict[str, float] = {"": 1, "S": 1, "M": 60, "MIN": 60, "H": 3600, "D": 86400}
# Smaller numbers without a unit are meant as something else.
_LEAST_BYTES = 1e6
_NUMBER = re.compile(r"\s*(?P<number>[0-9]*\.?[0-9]+)\s*(?P<unit>[A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Return how many bytes `4G`, `512MB` or `3.5GiB` are.

    Raises:
        UsageError: If it is not a positive number with a unit of this kind.
    """
    return math.ceil(_parse("--memory", text, _BYTES, "write bytes as 512M, 4G, 3.5GiB"))


def parse_seconds(text: str) -> float:
    """Return how many seconds `90m` or `2h` are.

    Raises:
        UsageError: If it is not a positive number with a unit of this kind.
    """
    return _parse("--time", text, _SECONDS, "write time as 30s, 90m, 2h, 1.5d")


def bytes_text(num_bytes: float) -> str:
    """A size for people: `90 kB`, `649 MB`, `4.61 GB`."""
    if num_bytes < 1e6:
        return f"{num_bytes / 1e3:.0f} kB"
    return f"{num_bytes / 1e6:.0f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:.2f} GB"


def seconds_text(seconds: float) -> str:
    """A time for people: `12 s`, `35 min`, `2.4 h`, `3.1 days`."""
    for unit, size, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86400:.3g} days"


def _parse(flag: str, text: str, units: Mapping[str, float], hint: str) -> float:
    found = _NUMBER.fullmatch(text)
    if found is None or float(found["number"]) <= 0:
        raise UsageError(f"{flag} is {text!r}; expected a positive number with a unit", hint=hint)
    unit = found["unit"].upper()
    if not unit and units is _BYTES and float(found["number"]) < _LEAST_BYTES:
        number = found["number"]
        raise UsageError(
            f"{flag} is {text!r}, which is bytes", hint=f"write {number}G for gigabytes, {number}M for megabytes"
        )
    if unit not in units:
        raise UsageError(f"{flag} is {text!r}: there is no unit {found['unit']!r}", hint=hint)
    return float(found["number"]) * units[unit]
