"""Which bytes of a .pte are what: the parts people know, in the order of the file.

Numbers are field positions in ExecuTorch's schema (program.fbs), as in `prgec.core.contract.pte`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from flatbuffers import number_types
from flatbuffers.table import Table

from prgec.core.contract.flatbuffer import ints, longs, scalar, table, tables, text
from prgec.core.contract.names import LORA_A_METHOD, TOKENIZER_METHOD

INSTRUCTIONS, CONSTANTS, WEIGHTS, TOKENIZER = "instructions", "constants", "weights", "tokenizer"
_OF_METHODS = {TOKENIZER_METHOD: TOKENIZER, LORA_A_METHOD: "A matrices"}
_HEADER = struct.Struct("<4sIQQ")
_TENSOR, _SEGMENT = 5, 1


def part_starts(path: Path) -> list[tuple[int, str]]:
    """Return where each part of a complete .pte begins, and its name; the first begins at 0, names may come again.

    Args:
        path: A .pte whose delegates and constants come after its flatbuffer, as ExecuTorch writes them.
    """
    with path.open("rb") as file:
        _, _, program_bytes, base = _HEADER.unpack(file.read(8 + _HEADER.size)[8:])
        file.seek(0)
        buffer = file.read(program_bytes)
    root = Table(buffer, struct.unpack_from("<I", buffer, 0)[0])
    found = [(0, INSTRUCTIONS)]
    names = dict(_segment_names(root))
    for index, segment in enumerate(tables(root, 4)):
        start = base + scalar(segment, 0, number_types.Uint64Flags)
        found.append((start, names.get(index, CONSTANTS)))
        found += [(start + place, name) for place, name in _constants(root, index)]
    # If two begin at one place, the first is empty.
    starts = dict(sorted(found, key=lambda part: part[0]))
    return list(starts.items())


def _segment_names(root: Table) -> Iterator[tuple[int, str]]:
    """The content of each segment that does not hold constants."""
    for plan in tables(root, 1):
        for delegate in tables(plan, 7):
            blob = table(delegate, 1)
            if blob is not None and scalar(blob, 0, number_types.Int8Flags) == _SEGMENT:
                yield scalar(blob, 1, number_types.Uint32Flags), f"delegate of {text(plan, 0)}"
    for data in tables(root, 7):
        yield scalar(data, 1, number_types.Uint32Flags), WEIGHTS


def _constants(root: Table, segment: int) -> list[tuple[int, str]]:
    """Parts of the segment of constants: those that methods return have names of their own."""
    place = table(root, 5)
    if place is None or scalar(place, 0, number_types.Uint32Flags) != segment:
        return []
    names = dict(_buffer_names(root))
    return [(offset, names.get(index, CONSTANTS)) for index, offset in enumerate(longs(place, 1)) if index]


def _buffer_names(root: Table) -> Iterator[tuple[int, str]]:
    for plan in tables(root, 1):
        name = _OF_METHODS.get(text(plan, 0))
        outputs = ints(plan, 4)
        if name is None or not outputs:
            continue
        value = list(tables(plan, 2))[outputs[0]]
        content = table(value, 1)
        if content is not None and scalar(value, 0, number_types.Uint8Flags) == _TENSOR:
            yield scalar(content, 5, number_types.Uint32Flags), name
