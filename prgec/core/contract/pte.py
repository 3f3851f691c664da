"""Reads the structure of a .pte without torch or the ExecuTorch runtime.

Follows ExecuTorch's own schema (program.fbs, file identifier ET12) field by field with the flatbuffers library;
numbers below are field positions in that schema. Only the flatbuffer is read, never the weights after it.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flatbuffers import number_types
from flatbuffers.table import Table

from prgec.core.contract.flatbuffer import ints, longs, scalar, table, tables, text
from prgec.errors import ProgramError

_INT, _STRING = 2, 6
_KERNEL_CALL, _DELEGATE_CALL = 1, 2
SEGMENT = 1
_HEADER = struct.Struct("<4sIQQ")


@dataclass(frozen=True)
class DelegateBlob:
    """One delegate of a method: the backend it belongs to and the size of its compiled form."""

    backend: str
    size_bytes: int


@dataclass(frozen=True)
class MethodLayout:
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
    methods: dict[str, MethodLayout]
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
    except IsADirectoryError as error:
        raise ProgramError("a folder, not a program", where=path, hint="name the .pte") from error
    except (OSError, ValueError) as error:
        raise ProgramError(f"cannot read the program: {error}", where=path) from error
    except (struct.error, IndexError, TypeError, UnicodeDecodeError, OverflowError) as error:
        raise ProgramError("the program is damaged", where=path, hint="copy or compile it again") from error


def _read(path: Path, view: mmap.mmap) -> PteFile:
    if view[4:6] != b"ET":
        raise ProgramError("not an ExecuTorch program", where=path, hint="expected a .pte made by prgec compile")
    buffer = bytes(view[: program_bytes(view)])
    root = Table(buffer, struct.unpack_from("<I", buffer, 0)[0])
    segments = [scalar(segment, 1, number_types.Uint64Flags) for segment in tables(root, 4)]
    methods: dict[str, MethodLayout] = {}
    constants: dict[str, str | int] = {}
    for plan in tables(root, 1):
        name = text(plan, 0)
        if any(True for _ in _instructions(plan)):
            methods[name] = _method(name, plan, segments)
        elif (value := _constant(plan)) is not None:
            constants[name] = value
    return PteFile(path, len(view), methods, constants)


def program_bytes(view: mmap.mmap) -> int:
    """End of the flatbuffer; segments with weights and delegates follow it."""
    magic, _, program_bytes, _ = _HEADER.unpack_from(view, 8)
    return int(program_bytes) if magic[:2] == b"eh" and 0 < program_bytes <= len(view) else len(view)


def _method(name: str, plan: Table, segments: list[int]) -> MethodLayout:
    operators = [f"{text(op, 0)}.{text(op, 1) or 'default'}" for op in tables(plan, 6)]
    calls: Counter[str] = Counter()
    for kind, arguments in _instructions(plan):
        if kind == _KERNEL_CALL:
            calls[operators[scalar(arguments, 0, number_types.Int32Flags)]] += 1
    delegates = tuple(DelegateBlob(text(d, 0), _delegate_bytes(d, segments)) for d in tables(plan, 7))
    return MethodLayout(name, delegates, dict(sorted(calls.items())), sum(longs(plan, 8)))


def _delegate_bytes(delegate: Table, segments: list[int]) -> int:
    reference = table(delegate, 1)
    if reference is None or scalar(reference, 0, number_types.Int8Flags) != SEGMENT:
        return 0
    return segments[scalar(reference, 1, number_types.Uint32Flags)]


def _constant(plan: Table) -> str | int | None:
    values, outputs = list(tables(plan, 2)), ints(plan, 4)
    if len(outputs) != 1:
        return None
    value = values[outputs[0]]
    kind, content = scalar(value, 0, number_types.Uint8Flags), table(value, 1)
    if content is None:
        return None
    if kind == _STRING:
        return text(content, 0)
    return scalar(content, 0, number_types.Int64Flags) if kind == _INT else None


def _instructions(plan: Table) -> Iterator[tuple[int, Table]]:
    for chain in tables(plan, 5):
        for instruction in tables(chain, 2):
            arguments = table(instruction, 1)
            if arguments is not None:
                yield scalar(instruction, 0, number_types.Uint8Flags), arguments
