"""Reads the structure of a .pte without torch or the ExecuTorch runtime.

Follows ExecuTorch's own schema (program.fbs, file identifier ET12) field by field with the flatbuffers library;
numbers below are field positions in that schema. Only the flatbuffer is read, never the weights behind it.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatbuffers import number_types
from flatbuffers.table import Table

from prgec.errors import ProgramError

_INT, _STRING = 2, 6
_KERNEL_CALL, _DELEGATE_CALL = 1, 2
_SEGMENT = 1
_HEADER = struct.Struct("<4sIQQ")
_MAX_ITEMS = 1 << 24


@dataclass(frozen=True)
class DelegateBlob:
    """One delegate of a method: the backend it belongs to and the size of its compiled form."""

    backend: str
    size_bytes: int


@dataclass(frozen=True)
class Method:
    """One method as the runtime sees it.

    Attributes:
        name: Name of the method.
        delegates: Its delegates, in order.
        kernel_calls: Calls outside delegates by `namespace::op.overload`.
        planned_bytes: Memory planned for activations and state.
    """

    name: str
    delegates: tuple[DelegateBlob, ...]
    kernel_calls: dict[str, int]
    planned_bytes: int


@dataclass(frozen=True)
class PteFile:
    """The structure of a .pte.

    Attributes:
        path: The file.
        file_bytes: Its size.
        methods: Methods that compute something, by name.
        constants: Values of constant methods that are text or integers, by name.
    """

    path: Path
    file_bytes: int
    methods: dict[str, Method]
    constants: dict[str, str | int]


def read_pte(path: Path) -> PteFile:
    """Read a .pte.

    Raises:
        ProgramError: If the file is missing, not an ExecuTorch program, or damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            # Reading through a memoryview of the map touches only the pages of the flatbuffer.
            return _read(path, view)
    except FileNotFoundError as error:
        raise ProgramError("no such program", where=path, hint="make one with prgec compile") from error
    except (OSError, ValueError) as error:
        raise ProgramError(f"cannot read the program: {error}", where=path) from error
    except (struct.error, IndexError, TypeError, UnicodeDecodeError, OverflowError) as error:
        raise ProgramError("the program is damaged", where=path, hint="copy or compile it again") from error


def _read(path: Path, view: mmap.mmap) -> PteFile:
    if view[4:6] != b"ET":
        raise ProgramError("not an ExecuTorch program", where=path, hint="expected a .pte made by prgec compile")
    buffer = bytes(view[: _program_bytes(view)])
    root = Table(buffer, struct.unpack_from("<I", buffer, 0)[0])
    segments = [_scalar(segment, 1, number_types.Uint64Flags) for segment in _tables(root, 4)]
    methods: dict[str, Method] = {}
    constants: dict[str, str | int] = {}
    for plan in _tables(root, 1):
        name = _text(plan, 0)
        if any(True for _ in _instructions(plan)):
            methods[name] = _method(name, plan, segments)
        elif (value := _constant(plan)) is not None:
            constants[name] = value
    return PteFile(path, len(view), methods, constants)


def _program_bytes(view: mmap.mmap) -> int:
    """End of the flatbuffer; segments with weights and delegates follow it."""
    magic, _, program_bytes, _ = _HEADER.unpack_from(view, 8)
    return int(program_bytes) if magic[:2] == b"eh" and 0 < program_bytes <= len(view) else len(view)


def _method(name: str, plan: Table, segments: list[int]) -> Method:
    operators = [f"{_text(op, 0)}.{_text(op, 1) or 'default'}" for op in _tables(plan, 6)]
    calls: Counter[str] = Counter()
    for kind, arguments in _instructions(plan):
        if kind == _KERNEL_CALL:
            calls[operators[_scalar(arguments, 0, number_types.Int32Flags)]] += 1
    delegates = tuple(DelegateBlob(_text(d, 0), _delegate_bytes(d, segments)) for d in _tables(plan, 7))
    return Method(name, delegates, dict(sorted(calls.items())), sum(_longs(plan, 8)))


def _delegate_bytes(delegate: Table, segments: list[int]) -> int:
    reference = _table(delegate, 1)
    if reference is None or _scalar(reference, 0, number_types.Int8Flags) != _SEGMENT:
        return 0
    return segments[_scalar(reference, 1, number_types.Uint32Flags)]


def _constant(plan: Table) -> str | int | None:
    values, outputs = list(_tables(plan, 2)), _ints(plan, 4)
    if len(outputs) != 1:
        return None
    value = values[outputs[0]]
    kind, content = _scalar(value, 0, number_types.Uint8Flags), _table(value, 1)
    if content is None:
        return None
    if kind == _STRING:
        return _text(content, 0)
    return _scalar(content, 0, number_types.Int64Flags) if kind == _INT else None


def _instructions(plan: Table) -> Iterator[tuple[int, Table]]:
    for chain in _tables(plan, 5):
        for instruction in _tables(chain, 2):
            arguments = _table(instruction, 1)
            if arguments is not None:
                yield _scalar(instruction, 0, number_types.Uint8Flags), arguments


def _field(table: Table, position: int) -> int:
    """Absolute place of a field, 0 where it is absent."""
    offset = table.Offset(4 + 2 * position)
    return int(table.Pos + offset) if offset else 0


def _scalar(table: Table, position: int, flags: Any) -> int:
    place = _field(table, position)
    return int(table.Get(flags, place)) if place else 0


def _text(table: Table, position: int) -> str:
    place = _field(table, position)
    return bytes(table.String(place)).decode() if place else ""


def _table(table: Table, position: int) -> Table | None:
    place = _field(table, position)
    return Table(table.Bytes, table.Indirect(place)) if place else None


def _tables(table: Table, position: int) -> Iterator[Table]:
    start, length = _vector(table, position)
    for index in range(length):
        yield Table(table.Bytes, table.Indirect(start + 4 * index))


def _ints(table: Table, position: int) -> list[int]:
    start, length = _vector(table, position)
    return [int(table.Get(number_types.Int32Flags, start + 4 * index)) for index in range(length)]


def _longs(table: Table, position: int) -> list[int]:
    start, length = _vector(table, position)
    return [int(table.Get(number_types.Int64Flags, start + 8 * index)) for index in range(length)]


def _vector(table: Table, position: int) -> tuple[int, int]:
    offset = table.Offset(4 + 2 * position)
    if not offset:
        return 0, 0
    length = int(table.VectorLen(offset))
    if length > _MAX_ITEMS:
        raise IndexError("vector is longer than any program has")
    return int(table.Vector(offset)), length
