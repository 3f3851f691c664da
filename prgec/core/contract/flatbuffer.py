"""Fields of a flatbuffer by their position in its schema, without code generated from one; 0 or nothing if absent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flatbuffers import number_types
from flatbuffers.table import Table

_MAX_ITEMS = 1 << 24


def scalar(of: Table, position: int, flags: Any) -> int:
    """Return a number of a type of `flatbuffers.number_types`."""
    place = _field(of, position)
    return int(of.Get(flags, place)) if place else 0


def text(of: Table, position: int) -> str:
    """Return a string."""
    place = _field(of, position)
    return bytes(of.String(place)).decode() if place else ""


def table(of: Table, position: int) -> Table | None:
    """Return a table, or the content of a union."""
    place = _field(of, position)
    return Table(of.Bytes, of.Indirect(place)) if place else None


def tables(of: Table, position: int) -> Iterator[Table]:
    """Yield the tables of a vector."""
    start, length = _vector(of, position)
    for index in range(length):
        yield Table(of.Bytes, of.Indirect(start + 4 * index))


def ints(of: Table, position: int) -> list[int]:
    """Return a vector of i32."""
    start, length = _vector(of, position)
    return [int(of.Get(number_types.Int32Flags, start + 4 * index)) for index in range(length)]


def longs(of: Table, position: int) -> list[int]:
    """Return a vector of i64."""
    start, length = _vector(of, position)
    return [int(of.Get(number_types.Int64Flags, start + 8 * index)) for index in range(length)]


def _field(of: Table, position: int) -> int:
    """Absolute place of a field, 0 where it is absent."""
    offset = of.Offset(4 + 2 * position)
    return int(of.Pos + offset) if offset else 0


def _vector(of: Table, position: int) -> tuple[int, int]:
    offset = of.Offset(4 + 2 * position)
    if not offset:
        return 0, 0
    length = int(of.VectorLen(offset))
    if length > _MAX_ITEMS:
        raise IndexError("vector is longer than any program has")
    return int(of.Vector(offset)), length
